"""Choice of the entries of the next batch.

The batch takes entries from these sources, in this order. Sources 1 to 3 are used only if the trigger has found that
they may have entries:

1. a piece of a batch that killed its query: a batch of its own (recovery.poison_batch)
2. claimed entries: of dead consumers, released, or handed over by other clients (recovery.claim)
3. reserved entries that no offset names yet: reserved ahead by this run (prefetch), or by an interrupted attempt (a
   crash, a broken connection); in the second case the batch takes no new entries
4. new entries, and entries that were returned for a retry: they are in streams like any other
5. if there is nothing else, a piece that waits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from spark_streams.model.ids import MAX_ID
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange, entries_per_stream
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.finding import Finding
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.next_ranges import NextRanges
from spark_streams.source.microbatch.prefetch import Prefetch, Prefetched
from spark_streams.source.microbatch.query_state import QueryState
from spark_streams.source.microbatch.reserve import Reserving
from spark_streams.source.microbatch.run_state import RunState
from spark_streams.source.offset import Claimed, Offset
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.quota import BatchQuota
from spark_streams.source.recovery.claim import Claims
from spark_streams.source.recovery.claim_consumers import claim_consumer
from spark_streams.source.recovery.poison_batch import PoisonBatch
from spark_streams.source.sampled_size import average_sizes
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class BatchContents:
    """Entries chosen so far."""

    claimed: Mapping[str, Sequence[Claimed]]  # per stream, the consumers that hold its entries: claims, or one piece
    ranges: list[EntryRange] = field(default_factory=list)  # what is pending for our own consumer
    new: list[EntryRange] = field(default_factory=list)  # those of `ranges` that this trigger has reserved
    takes_no_more: bool = False  # the batch takes nothing more
    run: RunState = field(default_factory=RunState)  # what the run knows now

    def __bool__(self) -> bool:
        return bool(self.claimed or self.ranges)


@dataclass(frozen=True)
class BatchRequest:
    """token: name of the batch; quota: what it may still take; turn: counts triggers, and decides which streams are
    first if the quota does not suffice for all; now: a monotonic clock, in seconds; is_second_look: the trigger has
    looked at the groups again, because the first look was out of date."""

    token: str
    quota: BatchQuota
    turn: int
    now: float
    is_second_look: bool = False


class Source(Protocol):
    """One of the sources above."""

    def take(self, server: Server, contents: BatchContents, request: BatchRequest) -> tuple[BatchContents, BatchQuota]:
        """Return the batch with the entries that the quota admits, and the remaining quota. contents: the batch of
        the previous sources. If the batch takes nothing after this source, it `takes_no_more`.

        Raises DataLossError, ServerError and its subclasses.
        """


@dataclass(frozen=True)
class PoisonPiece:
    """A piece of a batch that killed its query."""

    poison: PoisonBatch
    state: QueryState

    def take(self, server: Server, contents: BatchContents, request: BatchRequest) -> tuple[BatchContents, BatchQuota]:
        state, run = self.state, contents.run
        piece, cache = self.poison.next_piece(server, state.groups, state.checkpoint, run.poison)
        contents = replace(contents, run=replace(run, poison=cache))
        return replace(contents, claimed=piece, takes_no_more=True) if piece else contents, request.quota


@dataclass(frozen=True)
class EntriesOfOthers:
    """Entries that other clients have left, released or handed over."""

    claims: Claims
    state: QueryState
    consumer: str

    def take(self, server: Server, contents: BatchContents, request: BatchRequest) -> tuple[BatchContents, BatchQuota]:
        # If entries were reserved ahead, released ones wait for the next trigger, which has none reserved.
        state, released = self.state, self.state.run.prefetched is None
        to = claim_consumer(self.consumer, request.token)
        claimed, quota = self.claims.take(server, state.groups, state.begin, to, request.quota, released)
        return replace(contents, claimed=claimed), quota


@dataclass(frozen=True)
class ReservedAhead:
    """Entries that were reserved beside the tasks of the batch before."""

    prefetched: Prefetched

    def take(self, server: Server, contents: BatchContents, request: BatchRequest) -> tuple[BatchContents, BatchQuota]:
        return replace(contents, ranges=self.prefetched.ranges), request.quota.without(self.prefetched.pending())


@dataclass(frozen=True)
class ReservedNotLogged:
    """Entries that are pending for the query's consumer and in no offset: a run was killed, or a connection broke,
    before the offset was logged. counts: per stream; begin: what is acknowledged."""

    how: Reserving
    counts: Mapping[str, int]
    begin: Offset

    def take(self, server: Server, contents: BatchContents, request: BatchRequest) -> tuple[BatchContents, BatchQuota]:
        if request.quota.is_full:
            return replace(contents, takes_no_more=True), request.quota
        how, allowed = self.how, request.quota.divide(self.counts, request.turn)
        pending = [PendingRange(s, MAX_ID, self.begin[s], limit=entries) for s, entries in allowed.items()]
        size = how.admission.size(list(allowed.values()))
        ranges = pending_ranges(server, how.member, pending, size, limits=how.limits)
        quota = request.quota.without(entries_per_stream(ranges))
        if not ranges and request.is_second_look:
            return contents, request.quota
        # If there are none, another client has taken them since the trigger's look: it looks again.
        return replace(contents, ranges=ranges, takes_no_more=True), quota


@dataclass(frozen=True)
class NewEntries:
    """New entries, reserved now. part_of: returns how many entries the batch may have while pieces wait, from the
    number of waiting entries and the quota; None: all."""

    how: Reserving
    losses: DataLoss
    state: QueryState
    options: SourceOptions
    part_of: Callable[[int, int | None], int] | None

    def take(self, server: Server, contents: BatchContents, request: BatchRequest) -> tuple[BatchContents, BatchQuota]:
        """It does not wait for more to come if there is a batch anyway, or pieces wait."""
        state, quota, admission = self.state, request.quota, self.how.admission
        backlog = admission.backlog(state.heads, state.groups)
        waiting = sum(backlog.values())
        if not backlog or quota.is_full:
            return contents, quota
        if not contents and self.part_of is None:
            is_held_back, admission = admission.held_back(waiting, request.now)
            contents = replace(contents, run=replace(contents.run, admission=admission))
            if is_held_back:
                return contents, quota
        if self.part_of is not None:
            quota = quota.with_entries(self.part_of(waiting, quota.entries))
        how: Reserving | NextRanges = self.how
        if self.options.no_ack:
            how = NextRanges(self.how.member, admission, self.options.ordered, self.how.limits)
        new: list[EntryRange] = []
        account, lost = contents.run.account, list[Finding]()
        while backlog:
            reserved, _ = how.new_entries(server, state.heads, state.groups, backlog, quota, request.turn)
            account, findings = account.after_reservation(state.heads, state.groups, reserved, self.how.member)
            lost += findings
            new = reserved.ranges
            if new or not reserved.states:
                break
            # What these streams had was deleted, or others were faster: streams that had no share are tried.
            backlog = {stream: entries for stream, entries in backlog.items() if stream not in reserved.states}
        if lost:  # last: then nothing counts them a second time
            self.losses.report(*lost)
        run = replace(contents.run, account=account)
        return replace(contents, ranges=contents.ranges + new, new=new, run=run), quota


class ContentsChooser:
    """Chooses what a batch holds."""

    def __init__(
        self,
        options: SourceOptions,
        losses: DataLoss,
        poison: PoisonBatch,
        claims: Claims,
        member: Membership,
        limits: Limits,
    ) -> None:
        self._options = options
        self._losses = losses
        self._poison = poison
        self._claims = claims
        self._member = member
        self._limits = limits

    def with_sizes(self, server: Server, state: QueryState, request: BatchRequest) -> BatchRequest:
        """Return the request with the sizes of entries, if bytes are limited and there may be entries to read."""
        if request.quota.size is None:
            return request
        if not (self._present(state) or state.run.admission.backlog(state.heads, state.groups)):
            return request
        sizes = average_sizes(server, {stream: state.begin[stream] for stream in state.groups}, self._limits)
        return replace(request, quota=replace(request.quota, sizes=sizes))

    def choose(self, server: Server, state: QueryState, request: BatchRequest) -> BatchContents:
        """Return the entries that the quota admits; empty if there is nothing to read. Raises as the sources do."""
        contents = BatchContents({}, run=state.run)
        for source in self._present(state):
            contents, quota = source.take(server, contents, request)
            request = replace(request, quota=quota)
            if contents.takes_no_more:
                return contents
        contents, _ = self._new(state, contents.run).take(server, contents, request)
        poison_cache = contents.run.poison
        return (
            contents
            if contents or not poison_cache.may_hold
            else replace(contents, claimed=self._poison.fallback_piece(poison_cache))
        )

    def _present(self, state: QueryState) -> list[Source]:
        """Return the sources that may have entries, without the new entries."""
        sources: list[Source] = []
        has_others = state.has_others
        if has_others or state.run.poison.may_hold:
            sources.append(PoisonPiece(self._poison, state))
        if has_others:
            sources.append(EntriesOfOthers(self._claims, state, self._member.consumer))
        if state.run.prefetched is not None:
            sources.append(ReservedAhead(state.run.prefetched))
        elif reserved := _reserved_not_logged(state):
            sources.append(ReservedNotLogged(self._how(state), reserved, state.begin))
        return sources

    def _new(self, state: QueryState, run: RunState) -> NewEntries:
        """Return the source of new entries. While pieces wait for other batches, a batch takes only a part of them."""
        holds_pieces = run.poison.may_hold and run.poison.holds_pieces
        part_of = self._poison.share_of if holds_pieces else None
        return NewEntries(self._how(state), self._losses, state, self._options, part_of)

    def _how(self, state: QueryState) -> Reserving:
        return Reserving(self._member, state.run.admission, self._limits)

    def claimed_ranges(self, server: Server, contents: BatchContents) -> list[EntryRange]:
        """Return the ranges of a batch's claimed entries. Raises DataLossError if its consumers hold fewer by now."""
        size = contents.run.admission.size([claim.count for claims in contents.claimed.values() for claim in claims])
        return self._claims.ranges(server, contents.claimed, size)

    def plan_prefetch(self, state: QueryState, contents: BatchContents, request: BatchRequest) -> Prefetch | None:
        """What follows the batch, if that is much (Limits.prefetch_entries). Not if others are in the groups: they
        could read it meanwhile. Not if entries were released: the next batch begins with them. request: for the next
        batch."""
        options, how = self._options, self._how(state)
        if options.no_ack or options.claim_idle is not None:
            return None
        if contents.takes_no_more or contents.claimed:
            return None
        if state.has_others:
            return None
        remaining = Counter(how.admission.backlog(state.heads, state.groups))
        remaining.subtract(entries_per_stream(contents.new))
        if not how.is_worth_it(remaining, request.quota):
            return None
        return Prefetch(how, list(state.groups), request.quota, request.turn, state.heads)


def _reserved_not_logged(state: QueryState) -> dict[str, int]:
    """How many entries are pending for us above what is acknowledged."""
    unacknowledged = state.unacknowledged
    return {s: group.ours for s, group in state.groups.items() if group.ours > unacknowledged.get(s, 0)}
