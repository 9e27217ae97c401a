"""How a query begins: which streams it reads, its group on each of them, and where it stands without a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.errors import StreamStateError
from spark_streams.model.ids import MIN_ID, InvalidStreamId, StreamId
from spark_streams.model.keys import key_beside
from spark_streams.model.operator_commands import seek_command
from spark_streams.options.per_stream import PerStream
from spark_streams.source.findings.count_entries import count_read
from spark_streams.source.findings.finding import Start
from spark_streams.source.findings.group_state import fetch_state, missing
from spark_streams.source.group.group_admin import create_groups_at, streams_without_group
from spark_streams.source.membership import Membership
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState, stream_states

FIRST = PerStream("0", {})  # before a stream's first entry


@dataclass(frozen=True)
class InitialPositionKeys:
    """Keys that keep first positions. kind: `first` of the streams that a pattern matched when the query began; `start`
    of older versions (older_positions)."""

    kind: str
    member: Membership

    def of(self, stream: str) -> bytes:
        """One stream's key."""
        return key_beside(stream, self.kind, self.member.group, self.member.consumer)


def create_groups(
    server: Server, member: Membership, streams: Sequence[str], starting: PerStream[str]
) -> dict[str, Start]:
    """Make sure that these streams have the group; a stream that does not exist is made. Where groups were made. Raises
    WrongKeyTypeError."""
    starts = resolve(server, streams_without_group(server, member, streams), starting)
    create_groups_at(server, member, starts)
    return starts


def resolve(server: Server, streams: Sequence[str], starting: PerStream[str]) -> dict[str, Start]:
    """Where a new group of these streams starts; `latest` is the newest entry of this moment. Raises
    WrongKeyTypeError."""
    starts = {}
    for stream, head in stream_states(server, streams).items():
        position = _wanted(starting, stream, head)
        starts[stream] = Start(position, count_read(server, stream, head, position), amid=position <= head.last)
    return starts


def _wanted(starting: PerStream[str], stream: str, head: StreamState) -> StreamId:
    wanted = starting.value_for(stream)
    return head.last if wanted == "$" else StreamId.parse(wanted)


def first_positions(server: Server, member: Membership, late: Mapping[str, Start], no_ack: bool) -> dict[str, StreamId]:
    """Where a query without a checkpoint begins: just below our oldest pending entry, else at the group's position.

    late: streams whose group is to be made. no_ack: always at the group's position; the query cannot read pending
    entries, and below it others are acknowledged.
    """
    streams = [stream for stream in member.streams if stream not in late]
    heads, states = fetch_state(server, member, streams)
    commands = [("XPENDING", stream, member.group, "-", "+", 1, member.consumer) for stream in streams]
    positions = {stream: start.position for stream, start in late.items()}
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        stream = command[1]
        state = states[stream]
        if state is None:
            raise missing(server, member, stream, not heads[stream].exists)
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        oldest = StreamId.parse(reply[0][0]).previous() if reply and not no_ack else state.last_delivered
        positions[stream] = min(oldest, state.last_delivered)
    return positions


def unused_start(
    server: Server, member: Membership, positions: Mapping[str, StreamId], starting: PerStream[str]
) -> str | None:
    """The line for streams whose group existed, if the query begins elsewhere than `starting` says; None: there are no
    such streams. positions: where the query begins on them. Raises WrongKeyTypeError, ServerError."""
    meant = [stream for stream in positions if starting.covers(stream)]
    wanted = {stream: _wanted(starting, stream, head) for stream, head in stream_states(server, meant).items()}
    between = [
        ("XRANGE", stream, bytes(min(ends).next()), bytes(max(ends)), "COUNT", 1)
        for stream in meant
        if (ends := (positions[stream], wanted[stream]))[0] != ends[1]
    ]
    told = [command[1] for command, reply in zip(between, server.execute_all(between), strict=True) if reply]
    if not told:
        return None
    stream, others = told[0], len(told) - 1
    to = "earliest" if wanted[stream] == MIN_ID else "latest" if starting.value_for(stream) == "$" else wanted[stream]
    more = f" and {others:,} more stream{'' if others == 1 else 's'}" if others else ""
    return (
        f"group {member.group!r} already exists on stream {stream!r}{more}. The query begins after entry "
        f"{positions[stream]}, where the group stands. startingOffsets is not used: it applies to new groups. To begin "
        f"elsewhere, stop the query, set the group ({seek_command(stream, member.group, to)}), and start it with a new "
        "checkpoint; or give the query a group of its own (option group)"
    )


def save_initial_positions(
    server: Server, keys: InitialPositionKeys, positions: Mapping[str, StreamId]
) -> dict[str, StreamId]:
    """Keep first positions on the server until a checkpoint has them; the positions that were kept first."""
    server.execute_all([("SET", keys.of(stream), str(position), "NX") for stream, position in positions.items()])
    # One whose key has gone since is as it would have been kept.
    return {**positions, **saved_initial_positions(server, keys, list(positions))}


def saved_initial_positions(server: Server, keys: InitialPositionKeys, streams: Sequence[str]) -> dict[str, StreamId]:
    """The first positions that are kept on the server, of those streams that have one."""
    replies = server.execute_all([("GET", keys.of(stream)) for stream in streams])
    return {
        stream: _saved(keys.of(stream), reply)
        for stream, reply in zip(streams, replies, strict=True)
        if reply is not None
    }


def _saved(key: bytes, text: bytes) -> StreamId:
    try:
        return StreamId.parse(text)
    except InvalidStreamId as error:
        raise StreamStateError(
            f"key {key.decode('utf-8', 'replace')!r} holds no first position ({error}): another client has changed it. "
            "Only the query's user may write keys rstream:… (docs/reference/rights.md). Restore the key from the "
            "server's backup"
        ) from None


def forget_initial_positions(server: Server, keys: InitialPositionKeys, streams: Sequence[str]) -> None:
    """The checkpoint has a position: first ones are of no more use."""
    server.execute_all([("DEL", keys.of(stream)) for stream in streams])
