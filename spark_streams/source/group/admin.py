"""Commands that create and set groups, each in one transaction with the query's consumer and its commit mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_streams.model.commit_mark import Mark, committed_key
from spark_streams.model.ids import MAX_ID
from spark_streams.source.group.compare import Repair
from spark_streams.source.group.findings import Start
from spark_streams.source.group.state import missing
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.connection import Argument, Reply, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.multi_exec import Outcome, frame_transaction
from spark_streams.wire.replies.reply_errors import (
    is_busy_group,
    is_key_required,
    is_no_such_key,
    is_out_of_memory,
)
from spark_streams.wire.replies.xinfo import group_named

Command = tuple[Argument, ...]


def streams_without_group(server: Server, member: Membership, streams: Sequence[str]) -> list[str]:
    """Return the streams that do not have the group, or do not exist. Raises WrongKeyTypeError."""
    replies = server.pipeline([("XINFO", "GROUPS", stream) for stream in streams])
    without = []
    for stream, reply in zip(streams, replies, strict=True):
        if isinstance(reply, ReplyError) and not is_no_such_key(reply):
            raise server.error_of(reply, ("XINFO", "GROUPS", stream))
        if group_named(member.group, reply) is None:
            without.append(stream)
    return without


def create_groups_at(
    server: Server, member: Membership, starts: Mapping[str, Start], make_streams: bool = True, marked: bool = True
) -> list[str]:
    """Create the groups that do not exist, each at an ID (S2) and with the number of entries below it. Return the
    streams that now have the group.

    make_streams: create missing streams; otherwise they are left out; marked: with the query's consumer and the commit
    mark of a query that begins there."""
    changes: dict[str, list[Command]] = {}
    for stream, start in starts.items():
        changes[stream] = [_create(member, stream, start, make_streams)]
        if marked:
            mark = Mark.at_begin(start.position, start.read)
            changes[stream] += [_create_consumer(member, stream), _set_mark(member, stream, mark)]
    created = []
    for stream, replies in _transactions(server, changes).items():
        if is_key_required(replies[0]):
            continue
        if isinstance(replies[0], ReplyError) and not is_busy_group(replies[0]):
            raise server.error_of(replies[0], changes[stream][0][:4])
        created.append(stream)
    return created


def join_groups(server: Server, member: Membership, marks: Mapping[str, Mark]) -> None:
    """Create the query's consumer in existing groups, and set its commit marks. If a group later lacks the consumer,
    the group was created again. Raises GroupMissingError, DataLossError."""
    _change(
        server,
        member,
        {stream: [_create_consumer(member, stream), _set_mark(member, stream, mark)] for stream, mark in marks.items()},
    )


def create_consumers(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """Create the query's consumer in these groups."""
    _change(server, member, {stream: [_create_consumer(member, stream)] for stream in streams})


def touch_consumers(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """Begin the idle time of the query's consumer anew, as a read does. A query that finds nothing to read, or reads
    without the group (noAck), is in use, too: its group must not be forgotten (retention.forgotten)."""
    _change(server, member, {stream: [_touch(member, stream)] for stream in streams})


def carry_out(
    server: Server, member: Membership, repairs: Mapping[str, Repair], marks: Mapping[str, Mark | None]
) -> set[str]:
    """Create and set groups, with their commit marks. Return the streams whose missing group was there again, as after
    a restore of the server: their groups and marks are as before. marks: the present ones.

    Raises DataLossError if a stream no longer exists."""
    changes: dict[str, list[Command]] = {}
    for stream, repair in repairs.items():
        commands: list[Command] = []
        if repair.command == "CREATE":
            commands.append(_create(member, stream, repair.start, repair.makes_stream))
        elif repair.command:
            commands.append(_set_group(member, stream, repair.start))
        if repair.command == "CREATE" or repair.creates_consumer:
            commands.append(_create_consumer(member, stream))
        if repair.sets_mark:
            commands.append(_set_mark(member, stream, repair.at.mark))
        if commands:
            changes[stream] = commands
    there = _change(server, member, changes)
    _change(server, member, {stream: [_mark_again(member, stream, marks.get(stream))] for stream in there})
    return there


def begin_batches(server: Server, member: Membership, end: Offset, first: Sequence[str]) -> None:
    """Replace the marks of a begin, or of `rstream groups seek`, above which this batch has read: Spark has logged it.
    The query may now be killed while it acknowledges the batch. The mark of a seek would then move it back, and to a
    new checkpoint the mark of a begin would prove that nothing is acknowledged, or that losses which this batch keeps
    are not counted. first: streams whose first batch it is, or whose account it may correct."""
    keys = [committed_key(stream, member.group, member.consumer) for stream in first]
    begun: list[tuple[bytes, Mark]] = []
    for stream, key, value in zip(first, keys, server.execute_all([("GET", key) for key in keys]), strict=True):
        mark = Mark.parse(value)
        at = end.at[stream]
        is_of_batch = mark is not None and any(part.after == mark.id for part in end.ranges(stream))
        is_known = mark is not None and (at.number > 0 or mark.read_at_begin != at.read)
        if mark is not None and ((mark.is_begin and is_known) or (mark.is_seek and is_of_batch)):
            begun.append((key, Mark.of_first_batch(mark.id, end.token)))
    commands = [("SET", key, str(mark)) for key, mark in begun]
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if is_out_of_memory(reply):  # a full server may delete a key: no mark says the same to a new checkpoint
            server.execute("DEL", command[1])
        elif isinstance(reply, ReplyError):
            raise server.error_of(reply, command)


def set_groups_to(
    server: Server, member: Membership, starts: Mapping[str, Start], marks: Mapping[str, Mark] | None = None
) -> None:
    """Set the groups of these streams (XGROUP SETID), in one transaction with these commit marks, which show that the
    query is active."""
    _change(
        server,
        member,
        {
            stream: [
                _set_group(member, stream, start),
                *(
                    [_set_mark(member, stream, marks[stream]), _touch(member, stream)]
                    if marks and stream in marks
                    else []
                ),
            ]
            for stream, start in starts.items()
        },
    )


def _create(member: Membership, stream: str, start: Start, makes_stream: bool) -> Command:
    create = ("XGROUP", "CREATE", stream, member.group, str(start.position))
    return (*create, *(("MKSTREAM",) if makes_stream else ()), *start.words())


def _set_group(member: Membership, stream: str, start: Start) -> Command:
    return ("XGROUP", "SETID", stream, member.group, str(start.position), *start.words())


def _create_consumer(member: Membership, stream: str) -> Command:
    return ("XGROUP", "CREATECONSUMER", stream, member.group, member.consumer)


def _touch(member: Membership, stream: str) -> Command:
    """Return a read of the consumer's pending entries above the highest ID but one, of which there are none."""
    above = str(MAX_ID.previous())
    return ("XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", 1, "STREAMS", stream, above)


def _set_mark(member: Membership, stream: str, mark: Mark) -> Command:
    return ("SET", committed_key(stream, member.group, member.consumer), str(mark))


def _mark_again(member: Membership, stream: str, mark: Mark | None) -> Command:
    if mark is None:
        return ("DEL", committed_key(stream, member.group, member.consumer))
    return _set_mark(member, stream, mark)


def _transactions(server: Server, changes: Mapping[str, Sequence[Command]]) -> dict[str, list[Reply]]:
    """Run the commands of each stream as one transaction, all in one round trip. Return the replies of each stream."""
    results: dict[str, list[Reply]] = {}
    for connection, streams in server.parts(list(changes), lambda stream: stream):
        framed = {
            stream: changes[stream] if len(changes[stream]) == 1 else frame_transaction(changes[stream])
            for stream in streams
        }
        replies = connection.pipeline([command for commands in framed.values() for command in commands])
        taken = iter(replies)
        for stream, commands in framed.items():
            own = [next(taken) for _ in commands]
            if len(commands) == 1:
                results[stream] = own
                continue
            outcome = Outcome.read(own)
            if outcome.refusal is not None or outcome.results is None:
                refused = changes[stream][min(outcome.place, len(changes[stream]) - 1)]
                raise connection.error_of(outcome.refusal or ReplyError("EXEC"), refused[:4])
            results[stream] = outcome.results
    return results


def _change(server: Server, member: Membership, changes: Mapping[str, Sequence[Command]]) -> set[str]:
    """Run the commands of each stream. Return the streams that have the group that was to be created. The other
    commands of their transactions are carried out all the same.

    Raises DataLossError if a stream no longer exists, and the named error of any other reply."""
    there: set[str] = set()
    for stream, replies in _transactions(server, changes).items():
        for command, reply in zip(changes[stream], replies, strict=True):
            if is_key_required(reply):
                raise missing(server, member, stream, stream_too=True)
            if is_busy_group(reply):
                there.add(stream)
            elif isinstance(reply, ReplyError):
                raise server.error_of(reply, command[:4])
    return there
