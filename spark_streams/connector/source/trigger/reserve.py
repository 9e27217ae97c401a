"""Reserving a batch: the group delivers entries to our consumer, and their data does not come to the driver
(docs/internals/facts.md, R1–R4).

A step is three commands: CLIENT REPLY SKIP and XREADGROUP, whose reply is suppressed, then XINFO GROUPS, which says
where the group is now and how many entries are pending. If the group has other consumers, XINFO CONSUMERS follows,
which says how many of these are ours. Steps of all streams travel in one round trip. The driver keeps only the ids
where steps end. If XREADGROUP fails, the others show nothing new: the driver then reads one entry with its reply, to
get the error.

If the group is a bookmark, a second group walks ahead of the query in the same way. The scratch group
`rstream-probe:<group>:<consumer>` begins at the query's position and reads with NOACK. So the driver learns the ID of
each n-th entry and receives none. Nothing is pending, and the server's memory does not grow.

A step has n entries, unless the stream ended within it. It did not end if the group has moved on since, to an entry
that existed when the trigger looked (`last`). So one more entry proves all steps before it. Entries of a step without
proof are counted with XRANGE.

A step that has not moved the scratch group is the end of the stream, or the server has refused it: nobody reads its
reply. So one more entry is then asked for, with its reply: that is the error, or an entry up to `last`, and the trigger
takes another snapshot.

The scratch group is destroyed before the trigger ends. If the run is killed in between, the next run finds it with its
first snapshot, and destroys it. Until then it is at or above the query's own group, so it holds no entry that the query
has read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.keys import probe_group
from spark_streams.connector.source.group.account import count_between
from spark_streams.connector.source.group.group_changes import GroupChange, change_groups
from spark_streams.connector.source.group.recovery import Start
from spark_streams.connector.source.group.snapshot import (
    GroupState,
    missing,
    read_group_now,
    read_group_state,
    read_lone_group,
)
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, PENDING, Part
from spark_streams.connector.source.trigger.run_state import Reserved
from spark_streams.connector.wire.connection import SKIP, Connection, Reply, Server, pack
from spark_streams.connector.wire.replies import is_key_required, is_no_group, is_no_such_key, milliseconds
from spark_streams.connector.wire.xinfo import GroupInfo, group_named

_SENT_AT_ONCE = 100  # steps
_TIME = pack("TIME")


@dataclass
class GroupSteps:
    """The steps of a group through one stream. wanted: the first `count` entries of a range that begins at the group;
    position: where the group is; remaining: how many entries it may still be asked for; is_finished: for no more."""

    wanted: Range

    def __post_init__(self) -> None:
        self.position = self.wanted.after
        self.remaining = self.wanted.count
        self.is_finished = False

    @property
    def stream(self) -> str:
        """Its name."""
        return self.wanted.stream

    def next_step(self, size: int) -> int:
        """Return the number of entries of the next step, at most `size`. A step never delivers more. It may seem to
        deliver less: so the number asked for counts."""
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


def in_rounds(
    client: GroupClient, groups: Sequence[Steps], size: int, commands_of: Callable[[Steps, int], bytes]
) -> Iterator[tuple[list[Steps], Iterator[tuple[Steps, int, Connection]]]]:
    """Let the groups walk until all are finished, in rounds of about Limits.reserve_round entries. Yield those of each
    round, and its steps: each with its number of entries, and the connection with its replies."""
    while unfinished := [group for group in groups if not group.is_finished]:
        yield unfinished, _sent(client.server, _round(unfinished, size, client.limits.reserve_round), commands_of)


def _round(groups: Sequence[Steps], size: int, limit: int) -> list[tuple[Steps, int]]:
    """Return the steps of one round trip, stream by stream: at least one step, and about `limit` entries."""
    steps: list[tuple[Steps, int]] = []
    for group in groups:
        while limit > 0 and group.remaining > 0:
            count = group.next_step(size)
            steps.append((group, count))
            limit -= count
    return steps


def _sent(
    server: Server, steps: Sequence[tuple[Steps, int]], commands_of: Callable[[Steps, int], bytes]
) -> Iterator[tuple[Steps, int, Connection]]:
    """Send the commands of all steps, to all servers at once. Then yield each step with its connection."""
    parts = server.parts(steps, lambda step: step[0].stream)
    for connection, steps_of_server in parts:
        connection.require_silence()
        for start in range(0, len(steps_of_server), _SENT_AT_ONCE):  # the server begins with the first ones
            piece = steps_of_server[start : start + _SENT_AT_ONCE]
            connection.send(b"".join([commands_of(*step) for step in piece]))
    for connection, steps_of_server in parts:
        for group, count in steps_of_server:
            yield group, count, connection


def reserve(
    client: GroupClient,
    wanted: Sequence[Range],
    states: Mapping[str, GroupState],
    step: int,
) -> Reserved:
    """Have entries delivered to the query's consumer.

    wanted: of each stream, the first `count` entries of a range that begins at its group; states: the group of each
    wanted stream, read just before; step: entries of one command at most.
    Raises GroupMissingError, DataLossError, ServerError.
    """
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
    """Take the replies of a round. Return the stream of each step with the group after it, if the query is alone in the
    group; with the replies to XINFO GROUPS and XINFO CONSUMERS, if it was not alone; with neither, if it is no longer
    alone.

    Replies are parsed as they arrive, while the server executes the next steps. All are read before a missing group is
    reported. times: gets the server's time after the last step of each stream. Raises ServerError."""
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
    """Those that deliver. before: the group where the next range begins; now: the group as last seen; parts: what was
    delivered."""

    before: GroupState

    def __post_init__(self) -> None:
        super().__post_init__()
        self.now = self.before
        self.parts: list[Part] = []

    def delivered(self, part: Part, after: GroupState) -> None:
        """What a step has delivered, and the group after it.

        If other clients claimed as many entries from us as the step delivered, it seems to have delivered none. The
        same holds for entries that were pending for us before, of a group that was set back. The next range then
        includes their ids. If there is no next range, the next trigger finds them pending above the batch.
        """
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
    """Return the command that has new entries delivered. options: NOACK."""
    return ["XREADGROUP", "GROUP", member.group, member.consumer, "COUNT", count, *options, "STREAMS", stream, ">"]


def silent_step(member: Membership, stream: str, count: int, *options: str) -> bytes:
    """Return the commands of a step: XREADGROUP without its reply, then XINFO GROUPS."""
    return SKIP + pack(*xreadgroup(member, stream, count, *options)) + pack("XINFO", "GROUPS", stream)


def _step(member: Membership, walk: _Reserving, count: int) -> bytes:
    stream = walk.stream
    commands = silent_step(member, stream, count)
    if not walk.now.is_alone:
        commands += pack("XINFO", "CONSUMERS", stream, member.group)
    return commands + _TIME


def _read_one_with_reply(client: GroupClient, stream: str, before: GroupState) -> tuple[Part, GroupState, int]:
    """Read one entry with its reply, to get the error: nothing was delivered, although the group is not at the end.
    Return the part, the group after that, and the server's time in milliseconds.

    Raises ServerReplyError. If there is neither entry nor error, the entries were deleted, or other clients read them.
    """
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


_NOACK = "NOACK"


@dataclass
class ScratchSteps(GroupSteps):
    """The steps of the scratch group through one stream, also over one entry above the limit, as proof."""

    is_whole: bool  # the range has exactly as many entries as are wanted
    # each step that moved it: the number of entries asked for, and the position after it
    reached: list[tuple[int, StreamId]] = field(default_factory=list)
    is_at_the_end: bool = False  # the last step has not moved it
    was_refused: bool = False  # one has not moved it although there were entries
    is_missing: bool = False  # there is no scratch group

    def __post_init__(self) -> None:
        super().__post_init__()
        self.remaining += not self.is_whole

    def next_step(self, size: int) -> int:
        """Return the same. The entry above the limit is a step of its own."""
        within_limit = self.remaining - (not self.is_whole)
        return super().next_step(min(size, within_limit) if within_limit else 1)

    def moved(self, count: int, group: GroupInfo | None) -> None:
        """Take the group as it is after a step. group: None: it does not exist."""
        if group is None:
            self.is_missing = self.is_finished = True
        elif self.moved_to(group.last_delivered):
            self.goes_on_at(group.last_delivered)
            self.reached.append((count, group.last_delivered))
        else:
            self.is_at_the_end = True

    def goes_on_at(self, position: StreamId) -> None:
        """Take the position of an entry that was read since the last step. It did not end there, if it was there."""
        self.was_refused |= self.is_at_the_end and position <= self.wanted.last

    def ranges(self) -> tuple[list[Range], Range | None]:
        """Return the ranges whose number of entries is proven, and the range behind them, which has an unknown number.
        None: there is no such range. Pure."""
        wanted, ranges = self.wanted, list[Range]()
        after = wanted.after
        inside = [step for step in self.reached if step[1] <= wanted.last]
        for count, position in inside[:-1]:
            ranges.append(Range(self.stream, after, position, count))
            after = position
        within_limit = [position for _, position in self.reached if not self._is_above_limit(position)]
        end = wanted.last if self.is_at_the_end or not within_limit else min(within_limit[-1], wanted.last)
        return ranges, Range(self.stream, after, end) if after < end else None

    def _is_above_limit(self, position: StreamId) -> bool:
        """Whether the group got there with the entry above the limit."""
        return position == self.position and sum(count for count, _ in self.reached) > self.wanted.count


def exact_ranges(
    client: GroupClient, wanted: Sequence[Range], whole: Collection[str], step: int
) -> dict[str, list[Range]]:
    """Return the first `count` entries of each range as touching ranges, each with its exact number of entries. whole:
    streams whose range has exactly as many.

    The last range ends at `last` if there are no more. If entries leave the stream meanwhile, the last range of a
    stream whose entries are all wanted may have fewer entries than its number says.
    Raises GroupMissingError, StreamStateError, ServerError.
    """
    if not wanted:
        return {}
    scratch = client.of_group(probe_group(client.group, client.consumer))
    begins = {entries.stream: Start(entries.after) for entries in wanted}
    # There is none yet: the first snapshot of a run has destroyed that of a run that was killed.
    change_groups(scratch, {stream: GroupChange(create=start) for stream, start in begins.items()})
    walks = [ScratchSteps(entries, entries.stream in whole) for entries in wanted]
    _walk(scratch, walks, step)
    ranges = {walk.stream: _counted(client.server, walk) for walk in walks}
    destroy_scratch_groups(client, list(begins))
    return ranges


def destroy_scratch_groups(client: GroupClient, streams: Collection[str]) -> None:
    """Destroy the query's scratch groups on these streams, if they exist. Raises ServerError."""
    group = probe_group(client.group, client.consumer)
    commands = [("XGROUP", "DESTROY", stream, group) for stream in streams]
    client.server.execute_all(commands, is_key_required)  # a stream may be deleted meanwhile


def _walk(scratch: GroupClient, walks: Sequence[ScratchSteps], step: int) -> None:
    """Let the group walk until all walks have ended."""
    for of_round, sent in in_rounds(scratch, walks, step, partial(_scratch_step, scratch.member)):
        for walk, count, connection in sent:
            groups = connection.next_answer(("XINFO", "GROUPS", walk.stream), is_no_such_key)
            walk.moved(count, group_named(scratch.group, groups))
        for walk in of_round:
            if walk.is_missing:
                raise missing(scratch, walk.stream, not scratch.server.execute("EXISTS", walk.stream))
            if walk.is_at_the_end and walk.position < walk.wanted.last:
                for _, entries in scratch.server.execute(*xreadgroup(scratch.member, walk.stream, 1, _NOACK)) or ():
                    walk.goes_on_at(StreamId.parse(entries[0][0]))
            if walk.was_refused:
                raise ServerReplyError(
                    f"the server at {scratch.server.address} has refused XREADGROUP of stream {walk.stream!r}",
                    "TRYAGAIN",
                )


def _scratch_step(scratch: Membership, walk: ScratchSteps, count: int) -> bytes:
    return silent_step(scratch, walk.stream, count, _NOACK)


def _counted(server: Server, walk: ScratchSteps) -> list[Range]:
    """Return the ranges of a walk, each with its number of entries."""
    ranges, rest = walk.ranges()
    if rest is None:
        return ranges
    remaining = walk.wanted.count - sum(entries.count for entries in ranges)
    is_known = walk.is_whole and not walk.is_at_the_end and remaining > 0
    count = remaining if is_known else count_between(server, walk.stream, rest.after, rest.last)
    return [*ranges, replace(rest, count=count)]
