"""Choice of the entries of the next batch, and of those that are reserved ahead.

The batch takes entries from these sources, in this order:

1. a piece of a batch that killed its query: a batch of its own (pending.poison_batch)
2. old entries: at or below the position, and pending for the query, because it has claimed them, or another client has
   handed them over. Only if the batch before is acknowledged
3. reserved entries that no offset names yet: reserved ahead by this run, or by an interrupted attempt; in the second
   case the batch takes no new entries
4. new entries
5. if there is nothing else, a piece that waits

Reserving ahead (prefetch): if a batch is large and more entries follow it, the background worker reserves these while
the tasks of the batch run. They are pending above the last logged offset, like those that a crash leaves behind: the
next run begins with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.compare import lost_above
from spark_streams.connector.source.group.snapshot import GroupState, fetch_state
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.offset import Range, around
from spark_streams.connector.source.partitioning import ALL, PENDING, Part, by_stream, entries_per_stream, pending_parts
from spark_streams.connector.source.pending.poison_batch import PoisonBatch
from spark_streams.connector.source.pending_list import NO_LIMIT, pending_ranges
from spark_streams.connector.source.quota import BatchQuota, average_sizes
from spark_streams.connector.source.trigger.roles import GroupRole
from spark_streams.connector.source.trigger.run_state import Admission, QueryState, Reserved, RunState
from spark_streams.connector.wire.xinfo import StreamState


@dataclass(frozen=True)
class Prefetch:
    """A reservation for the next batch."""

    role: GroupRole  # of the group
    admission: Admission  # of the last trigger
    read: Mapping[str, int]  # how many entries of each stream were read up to the end of the present batch
    positions: Mapping[str, StreamId]  # where that leaves the groups
    quota: BatchQuota  # of the next batch
    turn: int  # of the next batch
    heads: Mapping[str, StreamState]  # the streams at the last trigger

    def work(self, client: GroupClient) -> Reserved | None:
        """Reserve entries, unless the next trigger must look at the streams first. Raises as `reserve` does."""
        heads, groups = fetch_state(client, list(self.read), self.heads, if_alone=True)
        states = {stream: state for stream, state in groups.items() if state is not None}
        if len(states) < len(groups) or any(self._is_other(s, heads[s], state) for s, state in states.items()):
            return None
        backlog = self.admission.backlog(heads, states)
        # So large that it begins while tasks read the batch before.
        if not backlog.is_large(self.quota, client.limits.prefetch_entries):
            return None
        reserved = self.role.take(client, backlog, backlog.wanted(self.quota, self.turn))
        return reserved if reserved.parts else None

    def _is_other(self, stream: str, head: StreamState, state: GroupState) -> bool:
        """Whether the group is not where the batch leaves it, or the stream may have lost entries above it."""
        is_moved = state.last_delivered != self.positions[stream]
        return is_moved or (lost_above(head, state.last_delivered, self.read[stream]) or 0) != 0


_OLD_PAGE = 10_000  # entries of one range of old entries


@dataclass(frozen=True)
class BatchContents:
    """Entries chosen so far."""

    # ranges of old entries, or of one piece, per stream
    old: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    new: Mapping[str, Range] = field(default_factory=dict)  # ranges above the position, per stream
    parts: list[Part] = field(default_factory=list)  # all entries, for tasks
    fresh: list[Part] = field(default_factory=list)  # those that this trigger has reserved
    after: Mapping[str, GroupState] = field(default_factory=dict)  # the groups that they were reserved from, after that
    takes_no_more: bool = False  # the batch takes nothing more
    run: RunState = field(default_factory=RunState)  # what the run knows now

    def __bool__(self) -> bool:
        return bool(self.old or self.new)

    def with_new(self, parts: Sequence[Part], state: QueryState, times: Mapping[str, int]) -> BatchContents:
        """Return the batch with these parts above the positions. times: of the server after they were delivered."""
        new = dict(self.new)
        for part in parts:
            stream = part.stream
            before = new.get(stream) or Range(stream, state.start[stream], state.start[stream])
            until = max(times.get(stream, 0), before.until)
            new[stream] = Range(stream, before.after, part.range.last, before.count + part.count, until)
        ours = [
            part if part.by == ALL else Part(replace(part.range, until=new[part.stream].until), part.by)
            for part in parts
        ]
        return replace(self, new=new, parts=self.parts + ours)


@dataclass(frozen=True)
class BatchRequest:
    """What a trigger asks for."""

    token: str  # name of the batch
    quota: BatchQuota  # what it may still take
    turn: int  # counts triggers, and decides which streams are first if the quota does not suffice for all
    now: float  # a monotonic clock, in seconds


@dataclass(frozen=True)
class ContentsChooser:
    """Chooses what a batch holds."""

    options: SourceOptions
    poison: PoisonBatch
    role: GroupRole

    def with_sizes(self, client: GroupClient, state: QueryState, request: BatchRequest) -> BatchRequest:
        """Return the request with the sizes of entries, if bytes are limited and there may be entries to read."""
        if request.quota.size is None:
            return request
        has_some = state.above or state.old or state.has_others or state.run.poison.may_hold
        if not (has_some or state.run.admission.backlog(state.heads, state.groups).entries):
            return request
        sizes = average_sizes(client.server, {stream: state.start[stream] for stream in state.groups}, client.limits)
        return replace(request, quota=replace(request.quota, sizes=sizes))

    def choose(self, client: GroupClient, state: QueryState, request: BatchRequest) -> BatchContents:
        """Return the entries that the quota admits. Raises DataLossError, ServerError and its subclasses."""
        return _Choice(client, self.role, self.poison, state, request).contents()

    def plan_prefetch(
        self,
        state: QueryState,
        contents: BatchContents,
        request: BatchRequest,
        positions: Mapping[str, StreamId],
        limits: Limits,
    ) -> Prefetch | None:
        """What follows the batch, if that is much (Limits.prefetch_entries). Not if others are in the groups: they
        could read it meanwhile. Not if entries were released: the next batch begins with them. Not while pieces wait:
        they take turns with new entries. Not if the limit of the next batch depends on the time of this one
        (targetBatchTime). request: for the next batch; positions: where the batch leaves the groups."""
        options, admission = self.options, state.run.admission
        if options.claim_idle is not None or options.target_batch_time is not None:
            return None
        if contents.takes_no_more or contents.old or state.has_others or contents.run.poison.holds_pieces:
            return None
        taken, fresh = entries_per_stream(contents.parts), entries_per_stream(contents.fresh)
        backlog = admission.backlog(state.heads, state.groups)
        remaining = Counter(backlog.entries)
        remaining.subtract(fresh)
        is_large = replace(backlog, entries=remaining).is_large(request.quota, limits.prefetch_entries)
        if not (self.role.has_pending_list and is_large):
            return None
        read = {stream: state.start.at[stream].read for stream in state.groups}
        if any(entries is None for entries in read.values()):
            return None
        known = {stream: (entries or 0) + taken[stream] for stream, entries in read.items()}
        left = {stream: positions[stream] for stream in known}
        return Prefetch(self.role, admission, known, left, request.quota, request.turn, state.heads)


@dataclass(frozen=True)
class _Choice:
    client: GroupClient
    role: GroupRole
    poison: PoisonBatch
    state: QueryState
    request: BatchRequest

    def contents(self) -> BatchContents:
        state = self.state
        contents, quota = BatchContents(run=state.run), self.request.quota
        if state.is_acknowledged:
            contents = self._piece(contents)
            if contents:
                return replace(contents, takes_no_more=True)
        if state.is_acknowledged and state.old:
            contents, quota = self._old(contents, quota)
        contents, quota = self._reserved(contents, quota)
        if not contents.takes_no_more:
            contents = self._new(contents, quota)
        if contents or not state.is_acknowledged or not contents.run.poison.holds_pieces:
            return contents
        run = contents.run
        old, parts, cache = self.poison.fallback_piece(self.client, state.start, run.poison)
        return replace(contents, old=old, parts=parts, run=replace(run, poison=cache))

    # -- what is pending for the query ---------------------------------------------------------------------------

    def _piece(self, contents: BatchContents) -> BatchContents:
        """Take a piece of a batch that killed its query."""
        state, run = self.state, contents.run
        read = [stream for stream in state.groups if not state.old.get(stream)]
        cache = self.poison.let_go(self.client.server, state.start, run.poison, read)
        old, parts, cache = self.poison.next_piece(self.client, list(state.groups), state.start, cache)
        return replace(contents, old=old, parts=parts, run=replace(run, poison=cache))

    def _old(self, contents: BatchContents, quota: BatchQuota) -> tuple[BatchContents, BatchQuota]:
        """Take entries at or below the positions, around the pieces of batches that killed the query."""
        state = self.state
        old: dict[str, tuple[Range, ...]] = {}
        parts: list[Part] = []
        pieces = contents.run.poison.state
        for stream in state.old:
            ranges: list[Range] = []
            set_aside = pieces.set_aside_in(stream) if pieces is not None else []
            for pending in around(stream, set_aside, state.start[stream], state.times.get(stream, 0)):
                limit = quota.limit_of(stream)
                if limit == 0:
                    break
                at_most = NO_LIMIT if limit is None else {stream: limit}
                found = pending_ranges(self.client, [pending], _OLD_PAGE, at_most, True)
                count = sum(entries.count for entries in found)
                if count:
                    ranges.append(replace(pending, last=found[-1].last, count=count))
                    parts += pending_parts(found)
                    quota = quota.without({stream: count})
            if ranges:
                old[stream] = tuple(ranges)
        return replace(contents, old=old, parts=parts), quota

    def _reserved(self, contents: BatchContents, quota: BatchQuota) -> tuple[BatchContents, BatchQuota]:
        """Take entries that are reserved above the position. Those of this run were reserved for this batch."""
        state = self.state
        if not state.above:
            return contents, quota
        prefetched = state.run.prefetched
        if prefetched is not None:
            contents = contents.with_new(prefetched.parts, state, prefetched.times)
            return contents, quota.without(entries_per_stream(prefetched.parts))
        if quota.is_full:
            return replace(contents, takes_no_more=True), quota
        counts = {stream: sum(entries.count for entries in ranges) for stream, ranges in state.above.items()}
        allowed = quota.divide(counts, self.request.turn)
        size = state.run.admission.size(list(allowed.values()))
        pending = [
            Range(stream, state.start[stream], state.groups[stream].last_delivered, until=state.times[stream])
            for stream in allowed
        ]
        found = pending_ranges(self.client, pending, size, allowed, True)
        taken = entries_per_stream(found)
        # If all are taken, the range ends where the group is: nothing else in between is ours.
        last = {entries.stream: index for index, entries in enumerate(found)}
        for stream, index in last.items():
            if taken[stream] >= counts[stream]:
                found[index] = replace(found[index], last=state.groups[stream].last_delivered)
        contents = contents.with_new(pending_parts(found), state, state.times)
        return replace(contents, takes_no_more=True), quota.without(taken)

    # -- new entries -----------------------------------------------------------------------------------------------

    def _new(self, contents: BatchContents, quota: BatchQuota) -> BatchContents:
        """Reserve new entries. It does not wait for more if there is a batch anyway, or enough for a full one. While
        pieces wait, a batch takes only a part of the new entries, at once."""
        state, request = self.state, self.request
        admission = state.run.admission
        groups = {**state.groups, **contents.after}
        backlog = admission.backlog(state.heads, groups)
        waiting, holds_pieces = sum(backlog.entries.values()), contents.run.poison.holds_pieces
        if not backlog.entries or quota.is_full:
            return contents
        is_full = quota.entries is not None and waiting >= quota.entries  # targetBatchTime may admit few
        if not contents and not holds_pieces and not is_full:
            is_held_back, waits = admission.held_back(waiting, request.now)
            contents = replace(contents, run=replace(contents.run, admission=waits))
            if is_held_back:
                return contents
        if holds_pieces:
            quota = quota.with_entries(self.poison.share_of(waiting, quota.entries))
        after: dict[str, GroupState] = {}
        while backlog.entries:
            reserved = self.role.take(self.client, backlog, backlog.wanted(quota, request.turn))
            after |= reserved.states
            parts = self._listed(contents, reserved)
            if parts:
                contents = contents.with_new(parts, state, reserved.times)
                return replace(contents, fresh=parts, after=after)
            if not reserved.states:
                break
            # What these streams had was deleted, or others were faster: streams that had no share are tried.
            left = {stream: entries for stream, entries in backlog.entries.items() if stream not in reserved.states}
            backlog = replace(backlog, entries=left)
        return replace(contents, after=after)

    def _listed(self, contents: BatchContents, reserved: Reserved) -> list[Part]:
        """Return what was reserved. If others could hand entries over or move the group since the trigger looked,
        return what the pending list has above the position, up to the group's."""
        state = self.state
        after = {
            stream: contents.new[stream].last if stream in contents.new else state.start[stream]
            for stream in reserved.times
        }
        own = by_stream(reserved.parts)
        whole = {
            stream
            for stream, parts in own.items()
            if all(part.by == ALL for part in parts) and parts[0].range.after == after.get(stream)
        }
        doubtful = {
            stream
            for stream, position in after.items()
            if reserved.states[stream].last_delivered > position
            and (reserved.states[stream].others or stream not in whole)
        }
        back = {stream for stream, position in after.items() if reserved.states[stream].last_delivered <= position}
        if not doubtful:
            return [part for part in reserved.parts if part.stream not in back]
        counts, ends = entries_per_stream(reserved.parts), reserved.states
        pending = [
            Range(stream, after[stream], ends[stream].last_delivered, until=reserved.times[stream])
            for stream in sorted(doubtful)
        ]
        size = state.run.admission.size([counts[stream] for stream in doubtful])
        found = pending_ranges(self.client, pending, size)
        listed = entries_per_stream(found)
        kept = {stream for stream in doubtful & whole if listed[stream] == counts[stream]}
        parts = [part for part in reserved.parts if part.stream not in back | (doubtful - kept)]
        return parts + [Part(entries, PENDING) for entries in found if entries.stream not in kept]
