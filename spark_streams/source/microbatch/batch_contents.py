"""What the next batch holds.

It is chosen from these sources, in this order. Each is asked only if the trigger has found that it has something:

1. a piece of a batch that killed its query: a batch of its own (recovery.poison_batch)
2. entries that are claimed: left by dead consumers, released, handed over by others (recovery.claim)
3. what was reserved ahead (prefetch), or what a crash left pending: then nothing new
4. new entries, and those that have come back for another try: they stand in streams like any other
5. if there is nothing else, a piece that waits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.ids import MAX_ID, StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.batch.batch_ends import Course
from spark_streams.source.entry_range import EntryRange, per_stream
from spark_streams.source.group.loss_account import LossAccount
from spark_streams.source.microbatch.next_ranges import NextRanges
from spark_streams.source.microbatch.prefetch import Prefetch
from spark_streams.source.microbatch.query_state import QueryState
from spark_streams.source.microbatch.reserve import Reserving
from spark_streams.source.offset import Claimed
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.recovery.claim import Claims
from spark_streams.source.recovery.claim_consumers import claim_consumer
from spark_streams.source.recovery.poison_batch import PoisonBatch
from spark_streams.source.recovery.poison_record import Remembered
from spark_streams.source.room import Room, take_in_parts
from spark_streams.wire.server import Server


@dataclass(frozen=True)
class BatchContents:
    """claimed: per stream, the consumers that hold entries of the batch (claims, or one piece); ranges: what is pending
    for our own consumer; new: those of the ranges that this trigger has reserved, None where a piece or what a crash
    left comes first. remembered, courses: what the run knows then (RunState)."""

    claimed: Mapping[str, Sequence[Claimed]]
    ranges: list[EntryRange] = field(default_factory=list)
    new: list[EntryRange] | None = None
    remembered: Remembered = field(default_factory=Remembered)
    courses: Mapping[str, Course] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.claimed or self.ranges)


@dataclass(frozen=True)
class Wish:
    """token: names the batch; room: what it may hold; turn: counts triggers, and decides who comes first where not all
    streams have room."""

    token: str
    room: Room
    turn: int


class ContentsChooser:
    """Chooses what a batch holds, and reserves what is new."""

    def __init__(
        self,
        options: SourceOptions,
        account: LossAccount,
        poison: PoisonBatch,
        claims: Claims,
        reserving: Reserving,
    ) -> None:
        self._options = options
        self._account = account
        self._poison = poison
        self._claims = claims
        self._reserving = reserving

    def choose(self, server: Server, state: QueryState, wish: Wish) -> BatchContents:
        """What there is room for; empty where there is nothing to read.

        Raises DataLossError where entries are gone and that is not allowed, ServerError and kin.
        """
        run, room = state.run, wish.room
        has_others = any(group.others or group.released for group in state.groups.values())
        remembered = run.remembered
        if has_others or remembered.may_hold:
            piece, remembered = self._poison.next_piece(server, state.groups, state.logged, remembered)
            if piece:
                return BatchContents(piece, remembered=remembered)
        claimed: Mapping[str, Sequence[Claimed]] = {}
        if has_others:
            # Released entries have no room beside what was reserved ahead; the next trigger has none, and takes them.
            consumer = claim_consumer(self._reserving.member.consumer, wish.token)
            released = run.ahead is None
            claimed, room = self._claims.take(server, state.groups, state.begin, consumer, room, released)
        ranges: list[EntryRange] = []
        if run.ahead is not None:
            ranges = run.ahead.ranges
            room = replace(room, size=run.ahead.room.size).without(per_stream(ranges))
        elif left := self._left_by_a_crash(state):
            is_full = room.is_full
            ranges = [] if is_full else self._take_again(server, state, left, replace(wish, room=room))
            if ranges or (is_full and claimed):
                return BatchContents(claimed, ranges, remembered=remembered, courses=run.courses)
        found = BatchContents(claimed, ranges, [], remembered, run.courses)
        found = self._with_new(server, state, replace(wish, room=room), found)
        if found or not remembered.may_hold:
            return found
        return replace(found, claimed=self._poison.last_resort(remembered))

    def _left_by_a_crash(self, state: QueryState) -> dict[str, int]:
        """How many entries a crashed run reserved and did not log: pending for us above what is acknowledged."""
        known = state.unacknowledged
        return {s: group.ours for s, group in state.groups.items() if group.ours > known.get(s, 0)}

    def _take_again(self, server: Server, state: QueryState, left: Mapping[str, int], wish: Wish) -> list[EntryRange]:
        """What a crashed run reserved."""
        how = self._reserving

        def take(allowed: Mapping[str, int], after: Mapping[str, StreamId]) -> list[EntryRange]:
            asked = [PendingRange(s, MAX_ID, after[s], most=entries) for s, entries in allowed.items()]
            size = how.admission.size(list(allowed.values()))
            return pending_ranges(server, how.member, asked, size, limits=how.limits)

        after = {stream: state.begin[stream] for stream in left}
        return take_in_parts(server, wish.room, left, after, wish.turn, take, how.limits)[0]

    def _with_new(self, server: Server, state: QueryState, wish: Wish, found: BatchContents) -> BatchContents:
        """With what is new, as far as there is room and it does not wait for more to come: that it does not do if there
        is a batch anyway."""
        room, admission = wish.room, self._reserving.admission
        holds_pieces = found.remembered.may_hold and found.remembered.holds_some
        backlog = admission.backlog(state.heads, state.groups)
        waiting = sum(backlog.values())
        if not backlog or room.is_full:
            return found
        if not (found or holds_pieces) and admission.should_wait(waiting):
            return found
        if holds_pieces:
            room = room.at_most(self._poison.share_of(waiting, room.entries))
        how: Reserving | NextRanges = self._reserving
        if self._options.no_ack:
            how = NextRanges(admission, self._options.ordered, self._reserving.limits, found.courses)
        new: list[EntryRange] = []
        while backlog:
            reserved, _ = how.new_entries(server, state.heads, state.groups, backlog, room, wish.turn)
            self._account.reserved(state.heads, state.groups, reserved)
            new = reserved.ranges
            if new or not reserved.states:
                break
            # What these streams had was deleted, or others were faster: streams that had no share are tried.
            backlog = {stream: entries for stream, entries in backlog.items() if stream not in reserved.states}
        courses = how.courses if isinstance(how, NextRanges) else found.courses
        return replace(found, ranges=found.ranges + new, new=new, courses=courses)

    def claimed_ranges(self, server: Server, claimed: Mapping[str, Sequence[Claimed]]) -> list[EntryRange]:
        """The ranges of what these consumers hold. Raises DataLossError where they hold less by now."""
        size = self._reserving.admission.size([one.count for some in claimed.values() for one in some])
        return self._claims.ranges(server, claimed, size)

    def ahead(self, state: QueryState, contents: BatchContents, wish: Wish) -> Prefetch | None:
        """What follows the batch, if that is much (Limits.worth_ahead). Not if others are in the groups: they could
        read it meanwhile. Not if entries were released: the next batch begins with them. wish: for the next batch."""
        options, how = self._options, self._reserving
        if options.no_ack or options.delivery == "at-most-once" or options.claim_idle is not None:
            return None
        if contents.new is None or contents.claimed:
            return None
        if any(group.others or group.released for group in state.groups.values()):
            return None
        left = Counter(how.admission.backlog(state.heads, state.groups))
        left.subtract(per_stream(contents.new))
        if not how.is_worth_it(left, wish.room):
            return None
        return Prefetch(how, list(state.groups), wish.room, wish.turn, state.heads)
