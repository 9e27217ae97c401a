"""What the group is to its query: it delivers the entries of a batch, or it is a bookmark. One of two roles, chosen
once for a run (query/batch_stream.py):

                        GroupRole                              Bookmarked (bookmark.py)
the group is            where it has delivered up to           where the query has committed up to
above the position      entries are pending for the query      nothing is pending
at or below it          pending entries: old entries           pending entries: an error
a commit                XACK, then the commit mark             sets the group, with the commit mark
new entries             the group delivers them                all of a range, whose end a scratch group finds

Reserving: the group delivers entries to our consumer, and their data does not come to the driver
(docs/internals/facts.md, R1–R4). A step is three commands: CLIENT REPLY SKIP and XREADGROUP, whose reply is suppressed
or, if the server refuses that, dropped; then XINFO GROUPS, which says where the group is now and how many entries are
pending. If the group has other consumers, XINFO CONSUMERS follows, which says how many of these are ours. Steps of all
streams travel in one round trip. If XREADGROUP fails, the others show nothing new: the driver then reads one entry with
its reply, to get the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import GroupMissingError
from spark_streams.connector.source.group.snapshot import (
    GroupState,
    PendingAbove,
    StreamSnapshot,
    fetch_snapshots,
    read_group_now,
    read_group_state,
    read_lone_group,
)
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.source.partitioning import ALL, PENDING, Part, by_stream
from spark_streams.connector.source.pending.claim import released_above
from spark_streams.connector.source.pending_list import acknowledge, pending_ranges
from spark_streams.connector.source.settled import Settled
from spark_streams.connector.source.trigger.run_state import Backlog, Reserved, RunState
from spark_streams.connector.wire.connection import Connection, Reply, Server, pack
from spark_streams.connector.wire.replies import is_no_group, is_no_such_key, milliseconds

_SENT_AT_ONCE = 100  # steps
_HEARD = 1_000  # entries of a round whose replies must be read: until then the server stores them
_TIME = pack("TIME")


class GroupRole:
    """What a trigger asks the group of one query, and does with it. This group delivers; `Bookmarked` does not."""

    has_pending_list: ClassVar[bool] = True  # entries of a batch are pending until it is committed: as its offsets say

    def snapshots(self, client: GroupClient, start: Offset, streams: Sequence[str]) -> dict[str, StreamSnapshot]:
        """Take snapshots of streams, with what is pending above the positions. Raises StreamStateError, ServerError."""
        limits = client.limits
        snapshots = fetch_snapshots(client, streams)
        pending = [
            Range(stream, start[stream], snapshot.group.last_delivered, until=snapshot.until)
            for stream, snapshot in snapshots.items()
            if snapshot.group is not None and snapshot.group.ours and snapshot.group.last_delivered > start[stream]
        ]
        try:
            reserved = by_stream(pending_ranges(client, pending, limits.reserve_step, asks_again=True))
        except GroupMissingError:  # destroyed since: again
            return self.snapshots(client, start, streams)
        for stream, snapshot in snapshots.items():
            group, released = snapshot.group, PendingAbove()
            if group is not None and group.released and group.last_delivered > start[stream]:
                above = start[stream], group.last_delivered
                found = released_above(client.server, client.member, stream, *above, limits.claim_page)
                released = PendingAbove(*found)
            snapshots[stream] = snapshot._replace(reserved=reserved.get(stream, ()), released=released)
        return snapshots

    def at_query(self, at: StreamOffset, group: GroupState) -> GroupState:
        """Return the group with the position from which the query reads on: where the group delivers."""
        return group

    def position(self, stream: str, start: Offset, run: RunState) -> StreamId:
        """Return where this run has left the group of a stream. start: where its last batch ends."""
        return run.positions.get(stream, start[stream])

    def old_entries(self, client: GroupClient, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many old entries the next batches read first. pending: how many are pending besides those that
        `snapshots` has listed, and those of the last batch. Raises StreamStateError, ServerError."""
        return pending

    def take(self, client: GroupClient, backlog: Backlog, wanted: Sequence[Range]) -> Reserved:
        """Take the first `count` entries of each range. Raises GroupMissingError, DataLossError, ServerError."""
        step = min(client.limits.reserve_step, backlog.admission.size([entries.count for entries in wanted]))
        return reserve(client, wanted, backlog.groups, step)

    def commit(self, client: GroupClient, settled: Settled, is_read: bool) -> int:
        """Acknowledge the batch that ends at the checkpoint (if its tasks were given its entries), and set the commit
        marks after the last XACK. Return how many entries were acknowledged. Raises GroupMissingError, DataLossError,
        ServerError."""
        marks = settled.marks_to_set()
        sets = [(stream, pack("SET", client.mark_key(stream), str(mark))) for stream, mark in marks.items()]
        return acknowledge(client, settled.open_ranges(is_read), sets)

    def token_of(self, batch: str) -> str:
        """Return the token that the streams of this batch have."""
        return batch


@dataclass
class GroupSteps:
    """The steps of a group through one stream."""

    wanted: Range  # the first `count` entries of a range that begins at the group

    def __post_init__(self) -> None:
        self.position = self.wanted.after  # of the group
        self.remaining = self.wanted.count  # entries that it may still be asked for
        self.is_finished = False

    @property
    def stream(self) -> str:
        return self.wanted.stream

    def next_step(self, size: int) -> int:
        """Return the number of entries of the next step. It may seem to deliver less: the number asked for counts."""
        count = min(self.remaining, size)
        self.remaining -= count
        return count

    def moved_to(self, position: StreamId) -> bool:
        """Take the group's position after a step. Return whether the step has moved it."""
        has_moved = position > self.position
        self.position = position
        self.is_finished |= not has_moved or self.remaining <= 0 or position >= self.wanted.last
        return has_moved


Steps = TypeVar("Steps", bound=GroupSteps)
CommandsOf = Callable[[Connection, Steps, int], bytes]


def in_rounds(
    client: GroupClient, groups: Sequence[Steps], size: int, commands_of: CommandsOf[Steps]
) -> Iterator[tuple[list[Steps], Iterator[tuple[Steps, int, Connection]]]]:
    """Let the groups walk until all are finished, in rounds of about Limits.reserve_round entries. Yield those of each
    round, and its steps: each with its number of entries, and the connection with its replies."""
    nodes, limit = client.server.parts(groups, lambda group: group.stream), client.limits.reserve_round
    if False in {node.is_silent() for node, _ in nodes}:
        size, limit = min(size, _HEARD), min(limit, _HEARD)
    while unfinished := [group for group in groups if not group.is_finished]:
        yield unfinished, _sent(client.server, _round(unfinished, size, limit), commands_of)


def _round(groups: Sequence[Steps], size: int, limit: int) -> list[tuple[Steps, int]]:
    """Return the steps of one round trip: at least one, and about `limit` entries."""
    steps: list[tuple[Steps, int]] = []
    for group in groups:
        while limit > 0 and group.remaining > 0:
            count = group.next_step(size)
            steps.append((group, count))
            limit -= count
    return steps


def _sent(
    server: Server, steps: Sequence[tuple[Steps, int]], commands_of: CommandsOf[Steps]
) -> Iterator[tuple[Steps, int, Connection]]:
    """Send the commands of all steps, to all servers at once. Then yield each step with its connection."""
    parts = server.parts(steps, lambda step: step[0].stream)
    for connection, steps_of_server in parts:
        for start in range(0, len(steps_of_server), _SENT_AT_ONCE):  # the server begins with the first ones
            piece = steps_of_server[start : start + _SENT_AT_ONCE]
            connection.send(b"".join([commands_of(connection, *step) for step in piece]))
    for connection, steps_of_server in parts:
        for group, count in steps_of_server:
            yield group, count, connection


def reserve(
    client: GroupClient,
    wanted: Sequence[Range],
    states: Mapping[str, GroupState],
    step: int,
) -> Reserved:
    """Have entries delivered to the query's consumer. wanted: of each stream, the first `count` entries of a range that
    begins at its group; states: these groups, read just before; step: entries of one command at most. Raises
    GroupMissingError, DataLossError, ServerError."""
    walks = [_Reserving(entries, states[entries.stream]) for entries in wanted]
    times: dict[str, int] = {}
    for unfinished, sent in in_rounds(client, walks, step, partial(_step, client.member)):
        read_to_the_end: set[str] = set()  # of this round
        for walk, lone, replies in _taken(client.member, sent, times):
            if walk.stream in read_to_the_end:
                continue
            if lone is not None:
                after = lone
            elif replies is not None:
                after = read_group_state(client, walk.stream, *replies)
            else:  # another client has joined the group: all steps of this round are one range
                after = read_group_now(client, walk.stream)
                read_to_the_end.add(walk.stream)
            walk.delivered(_part(walk.stream, walk.before, after), after)
        for walk in unfinished:
            if walk.is_finished and walk.got_nothing:
                part, after, times[walk.stream] = _read_one_with_reply(client, walk.stream, walk.before)
                walk.delivered(part, after)
    return Reserved(
        [part for walk in walks for part in walk.parts],
        {walk.stream: walk.now for walk in walks},
        {walk.stream: 0 if walk.now.is_alone else times[walk.stream] for walk in walks if walk.stream in times},
    )


def _taken(
    member: Membership, sent: Iterator[tuple[_Reserving, int, Connection]], times: dict[str, int]
) -> list[tuple[_Reserving, GroupState | None, tuple[Reply, Reply] | None]]:
    """Take the replies of a round, as they arrive. Return the stream of each step with the group after it, if the query
    is alone in the group; with the replies to XINFO GROUPS and XINFO CONSUMERS, if it was not; with neither, if it no
    longer is. times: gets the server's time after the last step of each stream. Raises ServerError."""
    taken: list[tuple[_Reserving, GroupState | None, tuple[Reply, Reply] | None]] = []
    for walk, _, connection in sent:
        groups = connection.next_answer(("XINFO", "GROUPS", walk.stream), is_no_such_key)
        if walk.now.is_alone:
            taken.append((walk, read_lone_group(member, groups), None))
        else:
            command = ("XINFO", "CONSUMERS", walk.stream, member.group)
            taken.append((walk, None, (groups, connection.next_answer(command, is_no_such_key, is_no_group))))
        times[walk.stream] = milliseconds(connection.next_answer(("TIME",)))
    return taken


@dataclass
class _Reserving(GroupSteps):
    """Those that deliver."""

    before: GroupState  # where the next range begins

    def __post_init__(self) -> None:
        super().__post_init__()
        self.now = self.before  # as last seen
        self.parts: list[Part] = []  # what was delivered

    def delivered(self, part: Part, after: GroupState) -> None:
        """Take what a step has delivered, and the group after it. If others claimed as many entries from us meanwhile,
        it seems to have delivered none; so too if they were pending for us before. The next range then includes their
        IDs, or the next trigger finds them pending above the batch."""
        self.now = after
        if part.count:
            self.before = after
            self.parts.append(part)
        self.moved_to(after.last_delivered)

    @property
    def got_nothing(self) -> bool:
        """Whether the group has not moved, although it is not at the end."""
        return not self.parts and self.now.last_delivered <= self.before.last_delivered < self.wanted.last


def xreadgroup(member: Membership, stream: str, count: int, *options: str) -> list[str | int]:
    """Return the command that has new entries delivered."""
    return ["XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", count, *options, "STREAMS", stream, ">"]


def silent_step(connection: Connection, member: Membership, stream: str, count: int, *options: str) -> bytes:
    """Return the commands of a step: XREADGROUP without its reply, then XINFO GROUPS."""
    read = pack(*xreadgroup(member, stream, count, *options))
    return connection.silenced(read) + pack("XINFO", "GROUPS", stream)


def _step(member: Membership, connection: Connection, walk: _Reserving, count: int) -> bytes:
    stream = walk.stream
    commands = silent_step(connection, member, stream, count)
    if not walk.now.is_alone:
        commands += pack("XINFO", "CONSUMERS", stream, member.group)
    return commands + _TIME


def _read_one_with_reply(client: GroupClient, stream: str, before: GroupState) -> tuple[Part, GroupState, int]:
    """Read one entry with its reply, to get the error: nothing was delivered, although the group is not at the end.
    Without an error, the entries were deleted, or others read them. Return the server's time, too."""
    client.server.execute(*xreadgroup(client.member, stream, 1))
    now = milliseconds(client.server.connection_for(stream).execute("TIME"))
    after = read_group_now(client, stream)
    return _part(stream, before, after), after, now


def _part(stream: str, before: GroupState, after: GroupState) -> Part:
    """What one step delivered to us: all entries of a range if the group as a whole delivered no more than that."""
    count = max(0, after.ours - before.ours)
    is_all = (
        before.entries_read is not None
        and after.entries_read is not None
        and after.entries_read - before.entries_read == count
    )
    return Part(Range(stream, before.last_delivered, after.last_delivered, count), ALL if is_all else PENDING)
