"""The consumer group on the server as the driver sees it: made, looked at, in one round trip for all streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_streams.errors import DataLossError, GroupMissingError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.option_values import Positions
from spark_streams.wire.connection import Connection, Reply, ReplyError
from spark_streams.wire.replies import pairs


@dataclass(frozen=True)
class Membership:
    """Who we are: a consumer of a group, over some streams."""

    streams: tuple[str, ...]
    group: str
    consumer: str


@dataclass(frozen=True)
class GroupState:
    """One stream's group at one moment.

    last_delivered: the group's position; entries_read, lag: Redis' own counts, None where it cannot tell;
    ours: entries pending for our consumer; known: whether the group has our consumer at all.
    """

    last_delivered: StreamId
    entries_read: int | None
    lag: int | None
    ours: int
    known: bool = True


@dataclass(frozen=True)
class StreamState:
    """last: the id of the last entry ever added (0-0: none); length: entries now; added: entries ever added, and
    first: the oldest entry's id, None before Redis 7."""

    last: StreamId
    length: int
    added: int | None
    first: StreamId | None


def create_groups(server: Connection, member: Membership, streams: Sequence[str], starting: Positions) -> None:
    """Make sure that these streams have the group: XGROUP CREATE … MKSTREAM pins the start on the server (S2).

    Where the group exists nothing changes. Raises WrongKeyTypeError.
    """
    commands = [("XGROUP", "CREATE", stream, member.group, starting.of(stream), "MKSTREAM") for stream in streams]
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if isinstance(reply, ReplyError) and not str(reply).startswith("BUSYGROUP"):
            raise server.error_of(reply, command)


def first_positions(server: Connection, member: Membership) -> dict[str, StreamId]:
    """Where a query without a checkpoint begins: just below our oldest pending entry, else at the group's position."""
    _, states = look(server, member, member.streams)
    commands = [("XPENDING", stream, member.group, "-", "+", 1, member.consumer) for stream in member.streams]
    positions: dict[str, StreamId] = {}
    for command, reply in zip(commands, server.pipeline(commands), strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        stream = command[1]
        positions[stream] = StreamId.parse(reply[0][0]).previous() if reply else states[stream].last_delivered
    return positions


def look(
    server: Connection, member: Membership, streams: Sequence[str]
) -> tuple[dict[str, StreamState], dict[str, GroupState]]:
    """Each stream and its group, in one round trip. Raises GroupMissingError, DataLossError.

    A group that has read nothing yet has no entries-read; then it is what was added less the lag. A producer that adds
    between the two questions makes that number too small, never too large.
    """
    commands: list[tuple[str, ...]] = []
    for stream in streams:
        commands += [("XINFO", "STREAM", stream), ("XINFO", "GROUPS", stream)]
        commands += [("XINFO", "CONSUMERS", stream, member.group)]
    replies = server.pipeline(commands)
    heads: dict[str, StreamState] = {}
    states: dict[str, GroupState] = {}
    for at, stream in enumerate(streams):
        state = read_group_state(server, member, stream, replies[3 * at + 1], replies[3 * at + 2])
        head = _read_stream_state(server, stream, replies[3 * at])
        if state.entries_read is None and head.added is not None and state.lag is not None:
            state = replace(state, entries_read=head.added - state.lag)
        heads[stream], states[stream] = head, state
    return heads, states


def read_group_state(
    server: Connection, member: Membership, stream: str, groups: Reply, consumers: Reply
) -> GroupState:
    """From the replies of XINFO GROUPS and XINFO CONSUMERS. Raises GroupMissingError, DataLossError."""
    if isinstance(groups, ReplyError):
        if "no such key" in str(groups):
            raise DataLossError(
                f"stream {stream!r} at {server.address} is gone, and its group {member.group!r} with it; "
                "restore it, or start with a new checkpoint"
            )
        raise server.error_of(groups, ("XINFO", "GROUPS", stream))
    group = next((g for g in map(pairs, groups) if g[b"name"] == member.group.encode()), None)
    if group is None:
        raise GroupMissingError(
            f"stream {stream!r} at {server.address} has no group {member.group!r} any more; "
            "create it at the checkpoint's position (XGROUP CREATE), or start with a new checkpoint"
        )
    ours = None
    if not isinstance(consumers, ReplyError):
        name = member.consumer.encode()
        ours = next((c[b"pending"] for c in map(pairs, consumers) if c[b"name"] == name), None)
    return GroupState(
        last_delivered=StreamId.parse(group[b"last-delivered-id"]),
        entries_read=group.get(b"entries-read"),
        lag=group.get(b"lag"),
        ours=ours or 0,
        known=ours is not None,
    )


def stream_states(server: Connection, streams: Sequence[str]) -> dict[str, StreamState]:
    """What each stream holds, in one round trip; a stream that does not exist holds nothing."""
    replies = server.pipeline([("XINFO", "STREAM", stream) for stream in streams])
    return {s: _read_stream_state(server, s, reply) for s, reply in zip(streams, replies, strict=True)}


def _read_stream_state(server: Connection, stream: str, reply: Reply) -> StreamState:
    if isinstance(reply, ReplyError):
        if "no such key" in str(reply):
            return StreamState(MIN_ID, 0, 0, None)
        raise server.error_of(reply, ("XINFO", "STREAM", stream))
    info = pairs(reply)
    first = info.get(b"recorded-first-entry-id")
    return StreamState(
        last=StreamId.parse(info[b"last-generated-id"]),
        length=info[b"length"],
        added=info.get(b"entries-added"),
        first=None if first is None else StreamId.parse(first),
    )
