"""Streams and consumer groups as the driver sees them.

fetch_snapshots   one transaction for each stream: stream, group, consumers, commit mark and time are of one moment
fetch_state       one round trip for all streams, without transactions: for a query whose groups are as it has left them

A role (trigger.roles) adds what is pending above the query's position to the snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.errors import GroupMissingError, GroupSharedError, StreamStateError
from spark_streams.connector.keys import probe_group
from spark_streams.connector.operator_commands import delete_consumer_command
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.group.recovery import Finding, Kind, MessageContext, error_of, problem_of
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Range
from spark_streams.connector.wire.connection.connection import Argument, Connection, Reply
from spark_streams.connector.wire.replies.multi_exec import transact_in_turn
from spark_streams.connector.wire.replies.replies import is_no_group, is_no_such_key, milliseconds
from spark_streams.connector.wire.replies.xinfo import (
    StreamState,
    consumers_in,
    group_named,
    read_stream_state,
    stream_states,
)


class OtherConsumer(NamedTuple):
    """Another consumer of the group and how many entries are pending for it."""

    name: str
    pending: int


class GroupState(NamedTuple):
    """One stream's group at one moment."""

    last_delivered: StreamId  # the group's position
    entries_read: int | None  # Redis' own count; None: unknown
    lag: int | None  # Redis' own count; None: unknown
    ours: int  # entries pending for the query's consumer
    has_consumer: bool = True  # whether the group has the query's consumer
    others: tuple[OtherConsumer, ...] = ()  # all other consumers
    released: int = 0  # entries that are pending for no consumer (XNACK)

    @property
    def is_alone(self) -> bool:
        """Whether the group has the query's consumer, no other one, and no released entries."""
        return self.has_consumer and not self.others and not self.released


class StreamSnapshot(NamedTuple):
    """A stream, its group and its commit mark at one moment."""

    head: StreamState  # the stream
    group: GroupState | None  # None: there is none
    mark: Mark | None = None  # the query's commit mark
    time: int = 0  # of the server, in milliseconds
    has_scratch: bool = False  # it has the query's scratch group, which a killed run has left (trigger.bookmark)

    @property
    def until(self) -> int:
        """When what is pending in the snapshot was delivered at the latest (Range.until). 0: at any time, because
        nobody else can hand entries over."""
        return 0 if self.group is not None and self.group.is_alone else self.time


def fetch_snapshots(client: GroupClient, streams: Sequence[str]) -> dict[str, StreamSnapshot]:
    """Return the state of each stream at one moment. Raises WrongKeyTypeError, ServerReplyError."""
    snapshots: dict[str, StreamSnapshot] = {}
    scratch = probe_group(client.group, client.consumer)
    for connection, part in client.server.parts(streams, lambda stream: stream):
        # One stream after the other: XINFO STREAM also returns the first and the last entry, however large.
        for stream, (info, groups, consumers, mark, time) in _snapshot_replies(client, connection, part):
            head = read_stream_state(client.server, stream, info)
            group = _read_group_state(client, stream, groups, consumers)
            has_scratch = group_named(scratch, groups) is not None
            snapshots[stream] = StreamSnapshot(head, group, Mark.parse(mark), milliseconds(time), has_scratch)
    return {stream: snapshots[stream] for stream in streams}


def _snapshot_replies(
    client: GroupClient, connection: Connection, streams: Sequence[str]
) -> Iterator[tuple[str, Sequence[Reply]]]:
    """Yield each stream with the replies to the commands of its snapshot."""
    sent: list[list[tuple[Argument, ...]]] = []
    for stream in streams:
        key = client.mark_key(stream)
        snapshot: list[tuple[Argument, ...]] = [("XINFO", "STREAM", stream), *_group_commands(client.member, stream)]
        sent.append([*snapshot, ("GET", key), ("TIME",)])
    yield from zip(streams, transact_in_turn(connection, sent, is_no_such_key, is_no_group), strict=True)


def fetch_marks(client: GroupClient, streams: Sequence[str]) -> dict[str, Mark | None]:
    """Return the commit marks of these streams; None: there is none. Raises ServerError."""
    keys = [client.mark_key(stream) for stream in streams]
    marks = map(Mark.parse, client.server.execute_all([("GET", key) for key in keys]))
    return dict(zip(streams, marks, strict=True))


def fetch_state(
    client: GroupClient,
    streams: Sequence[str],
    cached_heads: Mapping[str, StreamState] | None = None,
    if_alone: bool = False,
) -> tuple[dict[str, StreamState], dict[str, GroupState | None]]:
    """Return each stream and its group; None: the group does not exist. Raises WrongKeyTypeError, ServerReplyError.

    cached_heads: of an earlier call. XINFO STREAM also returns the first and the last entry, however large. So only
    streams whose counts have changed are fetched again, in a second round trip. if_alone: the query was alone in the
    groups; return None also if it is not any more. Then XINFO GROUPS tells all, and consumers are not asked for.
    """
    cached_heads = cached_heads or {}
    commands: list[tuple[str, ...]] = []
    for stream in streams:
        commands.append(("XLEN", stream) if stream in cached_heads else ("XINFO", "STREAM", stream))
        commands += _group_commands(client.member, stream)[: 1 if if_alone else 2]
    replies = client.server.execute_each(commands, is_no_such_key, is_no_group)
    heads: dict[str, StreamState] = {}
    states: dict[str, GroupState | None] = {}
    for stream, head, groups in zip(streams, replies, replies, strict=True):
        if if_alone:
            state = read_lone_group(client.member, groups)
        else:
            state = _read_group_state(client, stream, groups, next(replies))
        states[stream] = state
        cached_head = cached_heads.get(stream)
        if cached_head is None:
            heads[stream] = read_stream_state(client.server, stream, head)
        elif state is not None and _is_unchanged(cached_head, head, state):
            heads[stream] = cached_head
    heads.update(stream_states(client.server, [stream for stream in streams if stream not in heads]))
    return heads, states


def _is_unchanged(head: StreamState, length: Reply, state: GroupState) -> bool:
    """Whether the stream has as many entries, and ever had as many, as when `head` was fetched."""
    if not length or head.length != length or state.entries_read is None or state.lag is None:
        return False  # an empty stream always has a lag of 0; and XINFO STREAM returns no entry of it
    return state.entries_read + state.lag == head.added


def read_group_state(client: GroupClient, stream: str, groups: Reply, consumers: Reply) -> GroupState:
    """Parse the answers to XINFO GROUPS and XINFO CONSUMERS. Raises GroupMissingError, DataLossError."""
    state = _read_group_state(client, stream, groups, consumers)
    if state is None:
        raise missing(client, stream, is_no_such_key(groups))
    return state


def read_lone_group(member: Membership, groups: Reply) -> GroupState | None:
    """Parse the answer to XINFO GROUPS alone, for a group in which the query was alone: what is pending is pending for
    it. None: it is no longer alone, or there is no such group."""
    group = group_named(member.group, groups)
    if group is None or group.consumers != 1:
        return None
    return GroupState(group.last_delivered, group.entries_read, group.lag, group.pending)


def read_group_now(client: GroupClient, stream: str) -> GroupState:
    """Ask the server for the group. Raises GroupMissingError, DataLossError."""
    groups, consumers = client.server.execute_all(_group_commands(client.member, stream), is_no_such_key, is_no_group)
    return read_group_state(client, stream, groups, consumers)


def missing(client: GroupClient, stream: str, stream_too: bool, logged: StreamId | None = None) -> StreamStateError:
    """Return the error for a missing group, alone or with its stream. logged: the checkpoint's position, None:
    unknown."""
    place = MessageContext(client.member, str(client.server.address), client.server.address.forgets)
    kind = Kind.STREAM_MISSING if stream_too else Kind.GROUP_MISSING
    finding = Finding(kind, stream, above=MIN_ID if logged is None else logged)
    if stream_too or logged is not None:
        return error_of(finding, place)
    return GroupMissingError(
        f"{problem_of(finding, place).partition('. ')[0]}. Start the query again: the error then names the command "
        "that creates the group at the checkpoint. Or set failOnDataLoss=false: the query then creates it there"
    )


def _group_commands(member: Membership, stream: str) -> list[tuple[str, ...]]:
    return [("XINFO", "GROUPS", stream), ("XINFO", "CONSUMERS", stream, member.group)]


def _read_group_state(client: GroupClient, stream: str, groups: Reply, consumers: Reply) -> GroupState | None:
    group = group_named(client.group, groups)
    if group is None:
        return None
    ours = None
    others = []
    released = 0
    if not (is_no_group(consumers) or is_no_such_key(consumers)):  # else deleted after XINFO GROUPS
        consumer_list = consumers_in(consumers)
        released = max(0, group.pending - sum(consumer.pending for consumer in consumer_list))
        for consumer in consumer_list:
            if consumer.text == client.consumer:
                ours = consumer.pending
            else:
                others.append(OtherConsumer(consumer.text, consumer.pending))
    return GroupState(
        group.last_delivered,
        group.entries_read,
        group.lag,
        ours=ours or 0,
        has_consumer=ours is not None,
        others=tuple(others),
        released=released,
    )


def shared_at_restart(member: Membership, stream: str, state: GroupState) -> GroupSharedError:
    """Return the error for onNewCheckpoint=restart in a group that others read from."""
    other = next((other.name for other in state.others), None)
    who = f"{state.released} entries of it were released (XNACK)" if other is None else f"consumer {other!r} reads too"
    remedy = (
        ""
        if other is None
        else (
            f", or delete {other!r} if it is used no more: that is refused while entries are pending for it "
            f"({delete_consumer_command(stream, member.group, other)})"
        )
    )
    return GroupSharedError(
        f"stream {stream!r}: onNewCheckpoint=restart cannot set group {member.group!r} to startingOffsets, because "
        f"{who}. Give the query a group of its own (option group){remedy}"
    )


@dataclass(frozen=True)
class PendingAbove:
    """Entries that are pending above the position, up to the group's: for the query (reserved ahead, or left by a
    crash), or for nobody (released). last: the last one of them."""

    count: int = 0
    last: StreamId = MIN_ID


@dataclass(frozen=True)
class Snapshots:
    """Snapshots of some streams, and what is pending above the position in each: for the query, and for nobody
    (released: number and last ID)."""

    snapshots: Mapping[str, StreamSnapshot]
    above: Mapping[str, list[Range]]
    released: Mapping[str, tuple[int, StreamId]]

    def above_of(self, stream: str) -> PendingAbove:
        """Return what is pending above the position for the query, or for nobody: the query takes it."""
        released, last = self.released.get(stream, (0, MIN_ID))
        ranges = self.above.get(stream, [])
        return PendingAbove(self.ours_above(stream) + released, max([last, *(entries.last for entries in ranges)]))

    def ours_above(self, stream: str) -> int:
        """Return how many entries are pending for the query above its position."""
        return sum(entries.count for entries in self.above.get(stream, ()))

    def of(self, streams: Collection[str]) -> Snapshots:
        """Return the snapshots of these streams."""
        return Snapshots(
            {stream: snapshot for stream, snapshot in self.snapshots.items() if stream in streams},
            {stream: ranges for stream, ranges in self.above.items() if stream in streams},
            {stream: released for stream, released in self.released.items() if stream in streams},
        )

    def with_later(self, other: Snapshots) -> Snapshots:
        """Return these snapshots, and later ones of some of the streams instead of theirs."""
        kept = self.of(self.snapshots.keys() - other.snapshots.keys())
        return Snapshots(
            {**kept.snapshots, **other.snapshots}, {**kept.above, **other.above}, {**kept.released, **other.released}
        )
