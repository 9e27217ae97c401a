"""How a query begins: which streams it reads, its group on each of them, and where it stands without a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.by_stream import ByStream
from spark_streams.ids import StreamId
from spark_streams.keys import key_beside
from spark_streams.source.group.count_entries import count_read
from spark_streams.source.group.group_admin import Start, create_groups_at, streams_without_group
from spark_streams.source.group.group_state import fetch_state, missing
from spark_streams.source.membership import Membership
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import stream_states

FIRST = ByStream("0", {})  # before a stream's first entry


@dataclass(frozen=True)
class InitialPositionKeys:
    """Keys that keep first positions. kind: `start` of a query without a pending list; `first` of the streams that a
    pattern matched when the query began."""

    kind: str
    member: Membership

    def of(self, stream: str) -> bytes:
        """One stream's key."""
        return key_beside(stream, self.kind, self.member.group, self.member.consumer)


def create_groups(
    server: Server, member: Membership, streams: Sequence[str], starting: ByStream[str]
) -> dict[str, Start]:
    """Make sure that these streams have the group; a stream that does not exist is made. Where groups were made. Raises
    WrongKeyTypeError."""
    starts = resolve(server, streams_without_group(server, member, streams), starting)
    create_groups_at(server, member, starts)
    return starts


def resolve(server: Server, streams: Sequence[str], starting: ByStream[str]) -> dict[str, Start]:
    """Where a new group of these streams starts; `latest` is the newest entry of this moment. Raises
    WrongKeyTypeError."""
    starts = {}
    for stream, head in stream_states(server, streams).items():
        wanted = starting.of(stream)
        position = head.last if wanted == "$" else StreamId.parse(wanted)
        starts[stream] = Start(position, count_read(server, stream, head, position), amid=position <= head.last)
    return starts


def first_positions(server: Server, member: Membership, late: Mapping[str, Start]) -> dict[str, StreamId]:
    """Where a query without a checkpoint begins: just below our oldest pending entry, else at the group's position.
    late: streams whose group is to be made."""
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
        oldest = StreamId.parse(reply[0][0]).previous() if reply else state.last_delivered
        positions[stream] = min(oldest, state.last_delivered)
    return positions


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
    return {stream: StreamId.parse(reply) for stream, reply in zip(streams, replies, strict=True) if reply is not None}


def forget_initial_positions(server: Server, keys: InitialPositionKeys, streams: Sequence[str]) -> None:
    """The checkpoint has a position: first ones are of no more use."""
    server.execute_all([("DEL", keys.of(stream)) for stream in streams])
