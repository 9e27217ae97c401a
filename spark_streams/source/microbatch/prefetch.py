"""New entries for a batch: reserved when the batch is made, or ahead of that, beside the tasks of the batch before it.

A server works alone while Spark runs tasks, and stands still while Spark plans and commits. A large batch that has more
behind it is followed by the reserving of the next one at once; then making that batch costs a look at the groups. What
is reserved ahead is pending like anything that a crash leaves behind: above the last logged offset, and the next run
begins with it. A group that others read from, too, is not read ahead of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.ids import StreamId
from spark_streams.source.entry_range import EntryRange, per_stream
from spark_streams.source.group.entry_counts import held_above
from spark_streams.source.group.group_state import GroupState, Reserved, fetch_state
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.admission import Admission
from spark_streams.source.microbatch.reserve import Wanted, reserve
from spark_streams.source.room import Room, take_in_parts
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import StreamState


@dataclass(frozen=True)
class Reserving:
    """What every reserving of one query has in common."""

    member: Membership
    admission: Admission
    limits: Limits

    def new_entries(
        self,
        server: Server,
        heads: Mapping[str, StreamState],
        states: Mapping[str, GroupState],
        backlog: Mapping[str, int],
        room: Room,
        turn: int,
    ) -> tuple[Reserved, Room]:
        """Reserve of each stream's backlog what there is room for; also the room that is left. Raises as `reserve`
        does."""
        ends = {stream: self.admission.end_of(stream, heads).last for stream in backlog}
        now: dict[str, GroupState] = {}

        def take(allowed: Mapping[str, int], after: Mapping[str, StreamId]) -> list[EntryRange]:
            wanted = {s: Wanted(n, ends[s]) for s, n in allowed.items() if n > 0 and after[s] < ends[s]}
            step = min(self.limits.reserve_step, self.admission.size(list(allowed.values())))
            part = reserve(server, self.member, wanted, {**states, **now}, step, self.limits)
            now.update(part.states)
            return part.ranges

        after = {stream: states[stream].last_delivered for stream in backlog}
        ranges, left = take_in_parts(server, room, backlog, after, turn, take, self.limits)
        return Reserved(ranges, now), left

    def is_worth_it(self, backlog: Mapping[str, int], room: Room) -> bool:
        """Whether the next batch, with so much room for what is left, takes a while to reserve."""
        left, there = sum(backlog.values()), sum(room.open_to(backlog).values())
        taken = there if room.entries is None else min(there, room.entries)
        return taken >= self.limits.worth_ahead and not self.admission.is_too_little(left)


@dataclass
class Prefetch:
    """One reserving ahead. known: the streams at the last look; ranges: what it has reserved, once it has `work`ed, and
    room: what that leaves."""

    reserving: Reserving
    streams: Sequence[str]
    room: Room
    turn: int
    known: Mapping[str, StreamState]
    ranges: list[EntryRange] = field(default_factory=list)

    def work(self, server: Server) -> None:
        """Reserve, unless a closer look is needed: whoever makes the batch takes it. Raises as `reserve` does."""
        heads, found = fetch_state(server, self.reserving.member, self.streams, self.known)
        states = {s: state for s, state in found.items() if state is not None and not (state.others or state.released)}
        if len(states) < len(found) or any(_is_trimmed(heads[s], state) for s, state in states.items()):
            return
        backlog = self.reserving.admission.backlog(heads, states)
        if self.reserving.is_worth_it(backlog, self.room):
            reserved, self.room = self.reserving.new_entries(server, heads, states, backlog, self.room, self.turn)
            self.ranges = reserved.ranges

    def pending(self) -> Counter[str]:
        """How many entries are pending for it, per stream."""
        return per_stream(self.ranges)

    def ends(self) -> dict[str, StreamId]:
        """Where it has left the groups that it has read from."""
        return {entries.stream: entries.last for entries in self.ranges}

    def is_untouched(self, states: Mapping[str, GroupState], unacknowledged: Mapping[str, int]) -> bool:
        """Whether all groups stand as this left them. unacknowledged: pending entries of the batch before it."""
        ours = Counter(unacknowledged) + self.pending()
        ends = self.ends()
        return ends.keys() <= states.keys() and all(
            state.ours == ours[stream] and state.last_delivered == ends.get(stream, state.last_delivered)
            for stream, state in states.items()
        )


def _is_trimmed(head: StreamState, state: GroupState) -> bool:
    """Whether the stream may have lost entries that the group has yet to deliver."""
    held = held_above(head, state.last_delivered)
    if held is None or head.added is None:
        return False
    return state.entries_read is None or head.added - held > state.entries_read
