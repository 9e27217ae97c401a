"""What the next batch holds: a piece of a poison batch alone; else what was claimed, with what a crash left or with
what is new; else a piece as the last resort."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.ids import MAX_ID, StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange, per_stream
from spark_streams.source.group.data_loss import DataLoss
from spark_streams.source.group.group_reconciler import GroupReconciler
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.limits import Limits
from spark_streams.source.microbatch.admission import Admission
from spark_streams.source.microbatch.next_ranges import NextRanges
from spark_streams.source.microbatch.prefetch import Reserving
from spark_streams.source.microbatch.query_state import QueryState
from spark_streams.source.offset import Claimed
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.recovery.claim import Rules, take_over
from spark_streams.source.recovery.dead_entries import DeadEntries
from spark_streams.source.recovery.poison_batch import PoisonBatch
from spark_streams.source.room import Room, take_in_parts
from spark_streams.source.run_counters import RunCounters
from spark_streams.wire.server import Server

_log = logging.getLogger("spark_streams.source")


@dataclass(frozen=True)
class BatchContents:
    """claimed: per stream, the consumers that hold entries of the batch (claims, or one piece); ranges: what is pending
    for our own consumer; new: those of the ranges that this trigger has reserved, None where a piece or what a crash
    left comes first."""

    claimed: Mapping[str, Sequence[Claimed]]
    ranges: list[EntryRange] = field(default_factory=list)
    new: list[EntryRange] | None = None

    def __bool__(self) -> bool:
        return bool(self.claimed or self.ranges)


class ContentsChooser:
    """Chooses what a batch holds, and reserves what is new. turn: goes up with each trigger, and with it who comes
    first where not all streams have room; dead_letter: what to do with entries that were delivered too often."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        groups: GroupReconciler,
        admission: Admission,
        poison: PoisonBatch,
        losses: DataLoss,
        counters: RunCounters,
        dead_letter: Callable[[DeadEntries], None],
        limits: Limits,
    ) -> None:
        self._options = options
        self._subscription = subscription
        self._groups = groups
        self._admission = admission
        self._poison = poison
        self._losses = losses
        self._counters = counters
        self._dead_letter = dead_letter
        self._limits = limits
        self._ranges = NextRanges(admission, options.ordered, limits) if options.no_ack else None
        self._left_fatal: set[tuple[str, StreamId, int]] = set()
        self.turn = 0

    def forget(self) -> None:
        """Take nothing for known: the server is asked."""
        self._poison.forget()
        if self._ranges is not None:
            self._ranges.forget()

    def choose(self, server: Server, state: QueryState, token: str, room: Room) -> BatchContents:
        """What there is room for, for a batch named `token`; empty where there is nothing to read.

        Raises DataLossError where entries are gone and that is not allowed, ServerError and kin.
        """
        self.turn += 1
        piece = self._poison.next_piece(server, self._subscription.member, state.groups, state.logged)
        if piece:
            return BatchContents(piece)
        contents = self._claimed_left_and_new(server, state, token, room)
        return contents or BatchContents(self._poison.last_resort(server, state.logged), new=contents.new)

    def _claimed_left_and_new(self, server: Server, state: QueryState, token: str, room: Room) -> BatchContents:
        """What is claimed comes first; the room that it leaves goes to what a crash left, else to what is new."""
        claimed, room = self._claim(server, state, token, room)
        if state.prefetch is not None:
            ranges = state.prefetch.ranges
            room = replace(room, size=state.prefetch.room.size)
        else:
            ranges = self._left_by_a_crash(server, state, room)
            if ranges:
                return BatchContents(claimed, ranges)
        new = self._new(server, state.groups, room.without(per_stream(ranges)), hurry=bool(claimed or ranges))
        return BatchContents(claimed, ranges + new, new)

    def _claim(
        self, server: Server, state: QueryState, token: str, room: Room
    ) -> tuple[dict[str, list[Claimed]], Room]:
        """Entries of dead consumers and released ones, and claims of a run that died before an offset named them; also
        the room that they leave."""
        options = self._options
        rules = Rules(
            options.claim_idle,
            state.prefetch is None,  # else the room is taken; the next trigger has none, and takes them
            options.max_deliveries,
            None if options.dead_letter_stream is None else self._dead_letter,
            self._leave,
            self._losses.report,
            self._subscription.live,
            self._limits,
        )
        claimed, left = take_over(server, self._subscription.member, state.groups, state.begin, token, rules, room)
        for stream, some in claimed.items():
            self._counters.claimed[stream] += sum(one.count for one in some)
        return claimed, left

    def _leave(self, stream: str, ids: Sequence[StreamId]) -> None:
        """Fatal entries stay pending: said once."""
        news = (stream, ids[0], len(ids))
        if news in self._left_fatal:
            return
        self._left_fatal.add(news)
        group = self._subscription.member.group
        _log.warning(
            "stream %r: %d entries of group %r, from %s on, are marked as fatal (XNACK FATAL), and this query has no "
            "deadLetterStream. They stay pending and are not read. To have them as dead letters, set deadLetterStream "
            "and maxDeliveries; rstream pending %s --group %s --entries 20 lists them",
            stream, len(ids), group, ids[0], stream, group,
        )  # fmt: skip

    def _left_by_a_crash(self, server: Server, state: QueryState, room: Room) -> list[EntryRange]:
        """Entries that a crashed run reserved and did not log: pending for us above what is acknowledged."""
        known = state.unacknowledged
        backlog = {s: group.ours for s, group in state.groups.items() if group.ours > known.get(s, 0)}
        if not backlog or room.is_full:
            return []

        def take(allowed: Mapping[str, int], after: Mapping[str, StreamId]) -> list[EntryRange]:
            asked = [PendingRange(s, MAX_ID, after[s], most=entries) for s, entries in allowed.items()]
            size = self._admission.size(list(allowed.values()))
            return pending_ranges(server, self._subscription.member, asked, size, limits=self._limits)

        after = {stream: state.begin[stream] for stream in backlog}
        return take_in_parts(server, room, backlog, after, self.turn, take, self._limits)[0]

    def _new(self, server: Server, groups: Mapping[str, GroupState], room: Room, hurry: bool) -> list[EntryRange]:
        """hurry: there is a batch anyway, so what is new need not wait for more to come."""
        backlog = self._admission.backlog(self._groups.heads, groups)
        hurry |= self._poison.holds_some
        if not backlog or room.is_full or (not hurry and self._admission.should_wait(sum(backlog.values()))):
            return []
        room = room.at_most(self._poison.share_of(sum(backlog.values()), room.entries))
        while backlog:
            choose = self.reserving.new_entries if self._ranges is None else self._ranges.choose
            reserved, _ = choose(server, self._groups.heads, groups, backlog, room, self.turn)
            self._groups.account.took(self._groups.heads, groups, reserved)
            if reserved.ranges or not reserved.states:
                return reserved.ranges
            # What these streams had was deleted, or others were faster: streams that had no share are tried.
            backlog = {stream: entries for stream, entries in backlog.items() if stream not in reserved.states}
        return []

    @property
    def reserving(self) -> Reserving:
        """How new entries are reserved, now or ahead."""
        return Reserving(self._subscription.member, self._admission, self._limits)
