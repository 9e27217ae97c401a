"""Commands that create and set groups, each in one transaction with the query's consumer and its commit mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import MAX_ID
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.group.compare import Repair
from spark_streams.connector.source.group.recovery import Start
from spark_streams.connector.source.group.snapshot import missing
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.wire.connection import Argument, Reply
from spark_streams.connector.wire.replies import (
    is_busy_group,
    is_error,
    is_key_required,
    is_no_such_key,
    transact_in_turn,
)
from spark_streams.connector.wire.xinfo import group_named

Command = tuple[Argument, ...]


def streams_without_group(client: GroupClient, streams: Sequence[str]) -> list[str]:
    """Return the streams that do not have the group, or do not exist. Raises WrongKeyTypeError."""
    replies = client.server.execute_all([("XINFO", "GROUPS", stream) for stream in streams], is_no_such_key)
    return [stream for stream, reply in zip(streams, replies, strict=True) if group_named(client.group, reply) is None]


@dataclass(frozen=True)
class GroupChange:
    """A change of the group on one stream. The group, the query's consumer and its commit mark change in one
    transaction."""

    create: Start | None = None  # where to create the group, unless it exists
    set_to: Start | None = None  # where to set it
    makes_stream: bool = False  # create a missing stream, too
    consumer: bool = False  # create the query's consumer: if a group later lacks it, the group was created again
    mark: Mark | None = None  # the commit mark to set
    # begin the consumer's idle time anew, as a read does, so that the group of a query that reads nothing is not
    # forgotten (retention.py)
    touch: bool = False

    @classmethod
    def at_begin(cls, start: Start, makes_stream: bool) -> GroupChange:
        """Return what creates a group for a query that begins there."""
        mark = Mark.at_begin(start.position, start.read)
        return cls(create=start, makes_stream=makes_stream, consumer=True, mark=mark)

    def commands(self, member: Membership, stream: str) -> list[Command]:
        """Return the commands of the transaction."""
        commands: list[Command] = []
        if self.create is not None:
            make = ("MKSTREAM",) if self.makes_stream else ()
            position = str(self.create.position)
            commands.append(("XGROUP", "CREATE", stream, member.group, position, *make, *self.create.words()))
        if self.set_to is not None:
            position = str(self.set_to.position)
            commands.append(("XGROUP", "SETID", stream, member.group, position, *self.set_to.words()))
        if self.consumer:
            commands.append(("XGROUP", "CREATECONSUMER", stream, member.group, member.consumer))
        if self.mark is not None:
            commands.append(_set_mark(member, stream, self.mark))
        if self.touch:  # a read of pending entries above the highest ID but one, of which there are none
            above = str(MAX_ID.previous())
            read = ("XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", 1, "STREAMS", stream, above)
            commands.append(read)
        return commands


@dataclass(frozen=True)
class ChangedGroups:
    """Streams whose group existed and was not created, and streams that do not exist. On the former, the other commands
    of the transaction were carried out all the same."""

    existing: frozenset[str]
    missing: frozenset[str]


def try_to_change(client: GroupClient, changes: Mapping[str, GroupChange]) -> ChangedGroups:
    """Change the group on each stream, all in one round trip. Raises GroupMissingError, WrongKeyTypeError,
    ServerError."""
    commands = {stream: own for stream, change in changes.items() if (own := change.commands(client.member, stream))}
    existing, absent = set[str](), set[str]()
    for stream, replies in _transactions(client, commands).items():
        for command, reply in zip(commands[stream], replies, strict=True):
            if is_key_required(reply):
                absent.add(stream)
                break
            if is_busy_group(client.server.answer(command[:4], reply, is_busy_group)):
                existing.add(stream)
    return ChangedGroups(frozenset(existing), frozenset(absent))


def change_groups(client: GroupClient, changes: Mapping[str, GroupChange]) -> frozenset[str]:
    """Change the group on each stream. Return the streams whose group existed and was not created. Raises as
    `try_to_change` does, and DataLossError if a stream no longer exists."""
    changed = try_to_change(client, changes)
    for stream in changes:
        if stream in changed.missing:
            raise missing(client, stream, stream_too=True)
    return changed.existing


def carry_out(client: GroupClient, repairs: Mapping[str, Repair], marks: Mapping[str, Mark | None]) -> frozenset[str]:
    """Create and set groups, with their commit marks. Return the streams whose missing group was there again, as after
    a restore of the server: their groups and marks are as before. marks: the present ones.

    Raises DataLossError if a stream no longer exists."""
    there = change_groups(client, {stream: _change_of(repair) for stream, repair in repairs.items()})
    again = ((client.mark_key(stream), marks.get(stream)) for stream in there)
    client.server.execute_all([("DEL", key) if mark is None else ("SET", key, str(mark)) for key, mark in again])
    return there


def _change_of(repair: Repair) -> GroupChange:
    return GroupChange(
        create=repair.start if repair.command == "CREATE" else None,
        set_to=repair.start if repair.command == "SETID" else None,
        makes_stream=repair.makes_stream,
        consumer=repair.command == "CREATE" or repair.creates_consumer,
        mark=repair.at.mark if repair.sets_mark else None,
    )


def begin_batches(client: GroupClient, end: Offset, first: Sequence[str]) -> None:
    """Replace the marks of a begin, or of `rstream groups seek`, above which this batch has read: Spark has logged it.
    The query may now be killed while it acknowledges the batch. The mark of a seek would then move it back, and to a
    new checkpoint the mark of a begin would prove that nothing is acknowledged, or that losses which this batch keeps
    are not counted. first: streams whose first batch it is, or whose account it may correct."""
    keys = [client.mark_key(stream) for stream in first]
    begun: list[tuple[bytes, Mark]] = []
    for stream, key, value in zip(first, keys, client.server.execute_all([("GET", key) for key in keys]), strict=True):
        mark = Mark.parse(value)
        at = end.at[stream]
        is_of_batch = mark is not None and any(part.after == mark.id for part in end.ranges(stream))
        is_known = mark is not None and (at.number > 0 or mark.read_at_begin != at.read)
        if mark is not None and ((mark.is_begin and is_known) or (mark.is_seek and is_of_batch)):
            begun.append((key, Mark.of_first_batch(mark.id, end.token)))
    client.server.execute_all([("SET", key, str(mark)) for key, mark in begun])


def _set_mark(member: Membership, stream: str, mark: Mark) -> Command:
    return ("SET", committed_key(stream, member.group, member.consumer), str(mark))


def _transactions(client: GroupClient, changes: Mapping[str, Sequence[Command]]) -> dict[str, list[Reply]]:
    """Run the commands of each stream as one transaction, all in one round trip. Return the replies of each stream."""
    results: dict[str, list[Reply]] = {}
    for connection, streams in client.server.parts(list(changes), lambda stream: stream):
        taken = transact_in_turn(connection, [changes[stream] for stream in streams], is_error)
        results.update(zip(streams, taken, strict=True))
    return results
