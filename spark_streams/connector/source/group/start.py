"""Begin of a query: its group on each stream, and its first positions if it has no checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.base.times import from_milliseconds
from spark_streams.connector.errors import GroupForgottenError, StreamStateError
from spark_streams.connector.keys import forgotten_key, is_returned, key_beside
from spark_streams.connector.operator_commands import seek_command
from spark_streams.connector.options.parsers import PerStream
from spark_streams.connector.retention import ForgottenGroup
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.group.account import count_read
from spark_streams.connector.source.group.admin import GroupChange, change_groups
from spark_streams.connector.source.group.findings import Start
from spark_streams.connector.source.group.state import fetch_state, missing, shared_at_restart
from spark_streams.connector.source.membership import Membership
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.reply_errors import is_key_required, is_no_group, is_no_such_key
from spark_streams.connector.wire.replies.xinfo import StreamState, group_named, stream_states

_log = logging.getLogger("spark_streams.connector.source")

FIRST = PerStream("0", {})  # before a stream's first entry


@dataclass(frozen=True)
class InitialPositionKeys:
    """Keys of first positions of streams that a pattern matched when the query began."""

    member: Membership

    def key_of(self, stream: str) -> bytes:
        """Return the key of one stream."""
        return key_beside(stream, "first", self.member.group, self.member.consumer)


@dataclass(frozen=True)
class UnusedStart:
    """A query without a checkpoint, whose group stands elsewhere than startingOffsets. group: a sentence; position: of
    the group; seek: the command that sets it to startingOffsets."""

    group: str
    position: StreamId
    seek: str

    def warning(self) -> str:
        """Return the log line for onNewCheckpoint=resume."""
        return (
            f"{self.group}. The query begins after entry {self.position}, where the group stands. startingOffsets is "
            f"not used: it applies to new groups. To begin elsewhere, stop the query, set the group ({self.seek}), and "
            "start it with a new checkpoint; or give the query a group of its own (option group)"
        )


def starting_positions(server: Server, streams: Sequence[str], starting: PerStream[str]) -> dict[str, StreamId]:
    """Return where a new group begins on each of these streams; `latest` is the stream's last entry now. Raises
    WrongKeyTypeError."""
    heads = stream_states(server, streams)
    return {stream: _starting_position(starting, stream, head) for stream, head in heads.items()}


def warn_of_entries_before(member: Membership, created: Mapping[str, Start]) -> None:
    """Log how many entries lie before groups that were created at `latest`. Only now: Spark asks a query with a
    checkpoint, too, where it would begin (S2)."""
    passed = {stream: start.passed for stream, start in sorted(created.items()) if start.passed}
    if passed:
        _log.warning("%s", _entries_before(member, passed))


def starts_at(server: Server, positions: Mapping[str, StreamId], starting: PerStream[str]) -> dict[str, Start]:
    """Return the start of a new group at each of these positions. Raises WrongKeyTypeError."""
    starts: dict[str, Start] = {}
    for stream, head in stream_states(server, list(positions)).items():
        position = positions[stream]
        read = head.added if position > head.last else count_read(server, stream, head, position)
        passed = 0
        if position > MIN_ID and starting.value_for(stream) == "$" and read is not None:
            passed = max(0, (head.length or 0) - ((head.added or 0) - read))
        starts[stream] = Start(position, read, passed)
    return starts


def _entries_before(member: Membership, unread: Mapping[str, int]) -> str:
    stream, others = next(iter(unread)), len(unread) - 1
    streams = f"stream {stream!r}" + (f" and {others:,} more stream{'' if others == 1 else 's'}" if others else "")
    entries = sum(unread.values())
    lie, pronoun = ("entry lies before it and is", "it") if entries == 1 else ("entries lie before it and are", "them")
    return (
        f"group {member.group!r} is new and begins at the end of {streams} (startingOffsets=latest): "
        f"{entries:,} {lie} not read. "
        f"startingOffsets=earliest reads {pronoun}, but applies to new groups only. To read {pronoun} with this group, "
        f"stop the query, set the group ({seek_command(stream, member.group, 'earliest')}), and start it with a new "
        "checkpoint"
    )


def _starting_position(starting: PerStream[str], stream: str, head: StreamState) -> StreamId:
    value = starting.value_for(stream)
    return head.last if value == "$" else StreamId.parse(value)


def first_positions(
    server: Server, member: Membership, new: Mapping[str, StreamId], restarts_at: PerStream[str] | None
) -> dict[str, StreamId]:
    """Return where a query without a checkpoint begins: at its mark if a run has begun there, and has reserved entries
    above it before Spark logged an offset; otherwise at the group's position (group.first_account).

    new: where it begins on streams whose group does not exist yet; restarts_at: where it begins instead
    (onNewCheckpoint=restart).
    """
    streams = [stream for stream in member.streams if stream not in new]
    heads, states = fetch_state(server, member, streams)
    marks = fetch_marks(server, member, streams)
    begun = {stream: mark.id for stream, mark in marks.items() if mark is not None and mark.is_begin}
    commands = [("XPENDING", stream, member.group, f"({begun[stream]}", "+", 1, member.consumer) for stream in begun]
    reserved = {stream for stream, reply in zip(begun, server.execute_all(commands), strict=True) if reply}
    positions = dict(new)
    for stream, state in states.items():
        if state is None:
            raise missing(server, member, stream, not heads[stream].exists)
        if restarts_at is not None and restarts_at.covers(stream):
            positions[stream] = _starting_position(restarts_at, stream, heads[stream])
        elif stream in reserved:
            positions[stream] = min(begun[stream], state.last_delivered)
        else:
            positions[stream] = state.last_delivered
    return positions


def require_not_forgotten(server: Server, member: Membership, streams: Sequence[str], accepts_loss: bool) -> None:
    """Check that the group was not forgotten on these streams since it was last used (connector.retention), while the
    query holds its lease. accepts_loss: log it, and let the group hold entries back again.

    Raises GroupForgottenError, ServerError.
    """
    own = [stream for stream in streams if not is_returned(stream)]
    replies = server.execute_all([("GET", forgotten_key(stream, member.group)) for stream in own])
    for stream, record in zip(own, map(ForgottenGroup.parse, replies), strict=True):
        if record is None:
            continue
        [groups] = server.execute_all([("XINFO", "GROUPS", stream)], is_no_such_key)
        info = group_named(member.group, groups)
        if info is None or info.last_delivered != record.position:
            continue  # created again or set to another position since
        first = stream_states(server, [stream])[stream].first
        left = "no entry is left" if first in (None, MIN_ID) else f"the oldest entry that is left is {first}"
        why = (
            f"group {member.group!r} of stream {stream!r} at {server.address} was forgotten at "
            f"{from_milliseconds(record.at).isoformat(timespec='seconds')}, after entry {record.position}: its "
            "consumers were idle when rstream groups prune --hold ran, so entries that it had not acknowledged may be "
            f"removed; {left}"
        )
        if not accepts_loss:
            raise GroupForgottenError(
                f"{why}. To accept the loss and read what is left, set failOnDataLoss=false for one start. To keep "
                "entries longer, raise --idle of that command where it is scheduled"
            )
        _log.warning("%s (failOnDataLoss=false)", why)
        server.execute("DEL", forgotten_key(stream, member.group))


def fetch_marks(server: Server, member: Membership, streams: Sequence[str]) -> dict[str, Mark | None]:
    """Return the commit marks of these streams; None: there is none. Raises ServerError."""
    keys = [committed_key(stream, member.group, member.consumer) for stream in streams]
    marks = map(Mark.parse, server.execute_all([("GET", key) for key in keys]))
    return dict(zip(streams, marks, strict=True))


def restart_groups(server: Server, member: Membership, positions: Mapping[str, StreamId]) -> None:
    """Set existing groups to these positions, without pending entries of the query (onNewCheckpoint=restart). A killed
    query does this again. Raises GroupSharedError before any group is changed; DataLossError, ServerError."""
    heads, states = fetch_state(server, member, list(positions))
    existing = {stream: state for stream, state in states.items() if state is not None}
    for stream, state in existing.items():
        if state.others or state.released:
            raise shared_at_restart(member, stream, state)
    deletions = [("XGROUP", "DELCONSUMER", stream, member.group, member.consumer) for stream in existing]
    for stream, reply in zip(existing, server.execute_all(deletions, is_key_required, is_no_group), strict=True):
        if is_key_required(reply) or is_no_group(reply):
            raise missing(server, member, stream, stream_too=is_key_required(reply))
    starts = {
        stream: Start(positions[stream], count_read(server, stream, heads[stream], positions[stream]))
        for stream in existing
    }
    changes = {
        stream: GroupChange(set_to=start, mark=Mark.at_begin(start.position, start.read), touch=True)
        for stream, start in starts.items()
    }
    change_groups(server, member, changes)


def unused_start(
    server: Server, member: Membership, positions: Mapping[str, StreamId], starting: PerStream[str]
) -> UnusedStart | None:
    """Return what to say of streams whose group existed, if entries are between their position and `starting`; None:
    there are no such streams. positions: where the query begins on them. Raises WrongKeyTypeError, ServerError."""
    covered = [stream for stream in positions if starting.covers(stream)]
    starts = {
        stream: _starting_position(starting, stream, head) for stream, head in stream_states(server, covered).items()
    }
    between = [
        ("XRANGE", stream, bytes(min(ends).next()), bytes(max(ends)), "COUNT", 1)
        for stream in covered
        if (ends := (positions[stream], starts[stream]))[0] != ends[1]
    ]
    differing = [command[1] for command, reply in zip(between, server.execute_all(between), strict=True) if reply]
    if not differing:
        return None
    stream, others = differing[0], len(differing) - 1
    start = starts[stream]
    seek_to = "earliest" if start == MIN_ID else "latest" if starting.value_for(stream) == "$" else start
    more = f" and {others:,} more stream{'' if others == 1 else 's'}" if others else ""
    return UnusedStart(
        f"group {member.group!r} already exists on stream {stream!r}{more}",
        positions[stream],
        seek_command(stream, member.group, seek_to),
    )


def save_initial_positions(
    server: Server, keys: InitialPositionKeys, positions: Mapping[str, StreamId]
) -> dict[str, StreamId]:
    """Save first positions on the server until a checkpoint has them. Return those that were saved first."""
    server.execute_all([("SET", keys.key_of(stream), str(position), "NX") for stream, position in positions.items()])
    # If a key was deleted meanwhile, its position is the one that was to be saved.
    return {**positions, **fetch_initial_positions(server, keys, list(positions))}


def fetch_initial_positions(server: Server, keys: InitialPositionKeys, streams: Sequence[str]) -> dict[str, StreamId]:
    """Return the first positions that the server has, of those streams that have one."""
    replies = server.execute_all([("GET", keys.key_of(stream)) for stream in streams])
    return {
        stream: _parse_position(keys.key_of(stream), reply)
        for stream, reply in zip(streams, replies, strict=True)
        if reply is not None
    }


def _parse_position(key: bytes, text: bytes) -> StreamId:
    try:
        return StreamId.parse(text)
    except InvalidStreamId as error:
        raise StreamStateError(
            f"key {key.decode('utf-8', 'replace')!r} holds no first position ({error}): another client has changed it. "
            "Only the query's user may write keys rstream:… (rstream help access). Restore the key from the "
            "server's backup"
        ) from None


def delete_initial_positions(server: Server, keys: InitialPositionKeys, streams: Sequence[str]) -> None:
    """Delete first positions, because the checkpoint or the group has the position."""
    server.execute_all([("DEL", keys.key_of(stream)) for stream in streams])
