"""Streams and consumer groups as the driver sees them, and the commands that create and set groups.

fetch_snapshots   one transaction for each stream: stream, group, consumers, commit mark and time are of one moment
fetch_state       one round trip for all streams, without transactions: for a query whose groups are as it has left them
change_groups     one transaction for each stream: the group, the query's consumer and its commit mark change together

A role (trigger.roles) adds what is pending above the query's position to the snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.errors import GroupMissingError, GroupSharedError, StreamStateError
from spark_streams.connector.keys import probe_group
from spark_streams.connector.operator_commands import delete_consumer_command
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.group.recovery import Finding, Kind, MessageContext, Start, error_of, problem_of
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.wire.connection import Argument, Connection, Reply
from spark_streams.connector.wire.replies import (
    is_busy_group,
    is_error,
    is_key_required,
    is_no_group,
    is_no_such_key,
    milliseconds,
    transact_in_turn,
)
from spark_streams.connector.wire.xinfo import StreamState, consumers_in, group_named, read_stream_state, stream_states


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


@dataclass(frozen=True)
class PendingAbove:
    """Entries that are pending above the position for the query, or for nobody. last: the last of them."""

    count: int = 0
    last: StreamId = MIN_ID


class StreamSnapshot(NamedTuple):
    """A stream, its group and its commit mark at one moment."""

    head: StreamState  # the stream
    group: GroupState | None  # None: there is none
    mark: Mark | None = None  # the query's commit mark
    time: int = 0  # of the server, in milliseconds
    has_scratch: bool = False  # it has the query's scratch group, which a killed run has left (trigger.bookmark)
    reserved: Sequence[Range] = ()  # what is pending for the query above its position
    released: PendingAbove = PendingAbove()  # what is pending for nobody above it

    @property
    def until(self) -> int:
        """When what is pending was delivered at the latest (Range.until). 0: nobody else can hand entries over."""
        return 0 if self.group is not None and self.group.is_alone else self.time

    @property
    def ours_above(self) -> int:
        """How many entries are pending for the query above its position."""
        return sum(entries.count for entries in self.reserved)

    @property
    def above(self) -> PendingAbove:
        """What is pending above the position for the query, or for nobody: the query takes it."""
        last = max([self.released.last, *(entries.last for entries in self.reserved)])
        return PendingAbove(self.ours_above + self.released.count, last)


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
    """Return each stream and its group; None: the group does not exist. cached_heads: of an earlier call. XINFO STREAM
    also returns the first and the last entry, however large, so only streams whose counts have changed are fetched
    again. if_alone: the query was alone in the groups; return None also if it is not any more."""
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
    """Parse the answer to XINFO GROUPS for a group in which the query was alone. None: it is not alone any more."""
    group = group_named(member.group, groups)
    if group is None or group.consumers != 1:
        return None
    return GroupState(group.last_delivered, group.entries_read, group.lag, group.pending)


def read_group_now(client: GroupClient, stream: str) -> GroupState:
    """Ask the server for the group. Raises GroupMissingError, DataLossError."""
    replies = client.server.execute_all(_group_commands(client.member, stream), is_no_such_key, is_no_group)
    return read_group_state(client, stream, *replies)


def missing(client: GroupClient, stream: str, stream_too: bool, logged: StreamId | None = None) -> StreamStateError:
    """Return the error for a missing group, alone or with its stream. logged: the checkpoint's position."""
    place = MessageContext(client.member, str(client.server.address), client.server.address.forgets)
    kind = Kind.STREAM_MISSING if stream_too else Kind.GROUP_MISSING
    finding = Finding(kind, stream, above=MIN_ID if logged is None else logged)
    if stream_too or logged is not None:
        return error_of(finding, place)
    return GroupMissingError(
        f"{problem_of(finding, place).partition('. ')[0]}. Start the query again: the error then names the command "
        "that creates the group at the checkpoint. Or set failOnDataLoss=false: the query then creates it there"
    )


def require_groups(
    client: GroupClient,
    heads: Mapping[str, StreamState],
    groups: Mapping[str, GroupState | None],
    logged: Offset | None = None,
) -> dict[str, GroupState]:
    """Return these groups, or raise the error of the first one that is missing. logged: the checkpoint."""
    present: dict[str, GroupState] = {}
    for stream, group in groups.items():
        if group is None:
            raise missing(client, stream, not heads[stream].exists, None if logged is None else logged[stream])
        present[stream] = group
    return present


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


Command = tuple[Argument, ...]


def streams_without_group(client: GroupClient, streams: Sequence[str]) -> list[str]:
    """Return the streams that do not have the group, or do not exist. Raises WrongKeyTypeError."""
    replies = client.server.execute_all([("XINFO", "GROUPS", stream) for stream in streams], is_no_such_key)
    return [stream for stream, reply in zip(streams, replies, strict=True) if group_named(client.group, reply) is None]


@dataclass(frozen=True)
class GroupChange:
    """A change of the group on one stream, with the query's consumer and its commit mark: one transaction."""

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
            commands.append(("SET", committed_key(stream, member.group, member.consumer), str(self.mark)))
        if self.touch:  # a read of pending entries above the highest ID but one, of which there are none
            above = str(MAX_ID.previous())
            read = ("XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", 1, "STREAMS", stream, above)
            commands.append(read)
        return commands


def try_to_change(client: GroupClient, changes: Mapping[str, GroupChange]) -> tuple[set[str], set[str]]:
    """Change the group on each stream, in one round trip. Return the streams whose group existed (all but XGROUP CREATE
    was carried out), and streams that do not exist. Raises GroupMissingError, WrongKeyTypeError, ServerError."""
    commands = {stream: own for stream, change in changes.items() if (own := change.commands(client.member, stream))}
    existing, absent = set[str](), set[str]()
    for stream, replies in _transactions(client, commands).items():
        for command, reply in zip(commands[stream], replies, strict=True):
            if is_key_required(reply):
                absent.add(stream)
                break
            if is_busy_group(client.server.answer(command[:4], reply, is_busy_group)):
                existing.add(stream)
    return existing, absent


def change_groups(client: GroupClient, changes: Mapping[str, GroupChange]) -> set[str]:
    """Do the same. Return the streams whose group existed. Raises DataLossError if a stream no longer exists."""
    existing, absent = try_to_change(client, changes)
    for stream in changes:
        if stream in absent:
            raise missing(client, stream, stream_too=True)
    return existing


def _transactions(client: GroupClient, changes: Mapping[str, Sequence[Command]]) -> dict[str, list[Reply]]:
    results: dict[str, list[Reply]] = {}
    for connection, streams in client.server.parts(list(changes), lambda stream: stream):
        taken = transact_in_turn(connection, [changes[stream] for stream in streams], is_error)
        results.update(zip(streams, taken, strict=True))
    return results
