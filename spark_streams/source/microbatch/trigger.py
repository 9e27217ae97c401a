"""One trigger: reconcile, choose what the batch holds, make the batch and its offset; then acknowledge the one before
it and, where much is left, reserve the next one, both beside the tasks."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_streams.ids import MIN_ID, StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange, per_stream
from spark_streams.source.group.data_loss import GO_ON, DataLoss
from spark_streams.source.group.group_reconciler import GroupReconciler
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.limits import Limits
from spark_streams.source.microbatch.acknowledge import Acknowledging
from spark_streams.source.microbatch.admission import Admission
from spark_streams.source.microbatch.batch_contents import BatchContents, ContentsChooser
from spark_streams.source.microbatch.current_batch import CurrentBatch
from spark_streams.source.microbatch.prefetch import Prefetch
from spark_streams.source.microbatch.query_state import QueryState, RunMemory
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, acknowledge, claimed_ranges, pending_ranges
from spark_streams.source.room import Room
from spark_streams.wire.entries.pending_page import texts_of
from spark_streams.wire.server import Server


class Trigger:
    """The triggers of one query, one after the other."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        memory: RunMemory,
        groups: GroupReconciler,
        contents: ContentsChooser,
        acknowledging: Acknowledging,
        admission: Admission,
        room: Room,
        losses: DataLoss,
        limits: Limits,
    ) -> None:
        self._options = options
        self._subscription = subscription
        self._memory = memory
        self._groups = groups
        self._contents = contents
        self._acknowledging = acknowledging
        self._admission = admission
        self._room = room
        self._losses = losses
        self._limits = limits

    def next(self, server: Server, begin: Offset, most: int | None) -> CurrentBatch | None:
        """The next batch, of at most `most` entries. None if there is nothing to read: then `begin` is acknowledged
        before this returns, else in the background. begin: it is in Spark's commit log (docs/facts.md, S4).

        A batch of no entries is made if losses were counted that the checkpoint does not have yet."""
        state = self._memory.state_at(server, begin)
        self._acknowledging.marks.hold(server, [stream for stream in state.groups if stream not in begin.positions])
        token = secrets.token_hex(6)
        contents = self._contents.choose(server, state, token, self._room.at_most(most))
        self._memory.remember(state.groups, contents.new or [])
        if not contents:
            if not self._acknowledging.is_done(state.begin):
                self._acknowledging.now(server, state.begin)
            else:
                self._acknowledging.idle(server, state.begin)
            return self._batch_of_losses(server, state, token)
        self._admission.made()
        batch = self._make_batch(server, state, contents, token)
        if not self._acknowledging.is_done(state.begin):
            self._acknowledging.beside(server, state.begin)
        if contents.new is not None and not contents.claimed:
            self._reserve_ahead(state.groups, contents.new, most)
        return batch

    def _batch_of_losses(self, server: Server, state: QueryState, token: str) -> CurrentBatch | None:
        """A batch of no entries, if the checkpoint is to remember what was passed over (failOnDataLoss=false): without
        it each start of the query would find the same losses. The trigger after it has none: it makes no other one."""
        begin = self._groups.past_what_was_passed_over(state.begin, state.groups)
        if not self._losses.unlogged and (begin.positions == state.logged.positions or not self._losses.allowed):
            return None
        return self._make_batch(server, replace(state, begin=begin), BatchContents({}), token)

    def _make_batch(self, server: Server, state: QueryState, contents: BatchContents, token: str) -> CurrentBatch:
        """The batch, with an offset that names all that it holds."""
        remaining: Mapping[str, int] = {}
        if contents.new is None:
            # What a crash has left and this batch does not take; where new entries were reserved, nothing is left.
            remaining = Counter(state.above) - per_stream(contents.ranges)
        end = replace(
            state.begin.after(contents.ranges, token, contents.claimed).with_lost(self._losses.unlogged),
            no_ack=self._options.no_ack,
            notes=bool(contents) and self._options.mode == "DEADLETTER",
            counts=self._groups.account.at_checkpoint(remaining),
        )
        ranges = self._with_claimed(server, contents) if contents.claimed else contents.ranges
        if self._options.delivery == "at-most-once":
            ranges = self._acknowledge_at_once(server, end, ranges)
        return CurrentBatch(end, ranges, is_new=True)

    def _with_claimed(self, server: Server, contents: BatchContents) -> list[EntryRange]:
        """The ranges of a batch: first those of its claims."""
        member = self._subscription.member
        size = self._admission.size([one.count for some in contents.claimed.values() for one in some])
        claimed = pending_ranges(server, member, claimed_ranges(contents.claimed), size, limits=self._limits)
        held = Counter[tuple[str, str]]()
        for entries in claimed:
            held[entries.stream, entries.consumer] += entries.count
        for stream, some in contents.claimed.items():
            for one in some:
                problem = (
                    f"of {one.count} that {one.consumer!r} had claimed are no longer pending for it (acknowledged, "
                    "claimed by another consumer, or XGROUP DELCONSUMER)"
                )
                self._losses.report(stream, max(0, one.count - held[stream, one.consumer]), problem, GO_ON)
        return claimed + contents.ranges

    def _acknowledge_at_once(self, server: Server, end: Offset, ranges: Sequence[EntryRange]) -> list[EntryRange]:
        """at-most-once: acknowledge the batch before it is read. If others read from the group, too, a range takes
        the ids of our entries along first: after XACK the pending list cannot tell which were ours. The mark holds the
        entries until the batch is committed, so that nobody trims them before tasks read them."""
        member = self._subscription.member
        kept: list[EntryRange] = []
        for entries in ranges:
            ours = PendingRange(entries.stream, entries.last, entries.after, entries.consumer)
            if entries.owned:
                kept.append(entries)
            else:
                kept += pending_ranges(server, member, [ours], entries.count, keep_ids=True, limits=self._limits)
        lowest: dict[str, StreamId] = {}
        for entries in kept:
            if entries.consumer:
                first = StreamId.parse(texts_of(entries.ids)[0].as_py())
                lowest[entries.stream] = min(first, lowest.get(entries.stream, first))
        self._acknowledging.marks.give(server, end.token, {stream: end[stream] for stream in end.shares}, lowest)
        shares = [PendingRange(stream, end[stream], held.after or MIN_ID) for stream, held in end.shares.items()]
        acknowledge(server, member, [*shares, *claimed_ranges(end.claimed)], self._limits)
        return kept

    def _reserve_ahead(self, groups: Mapping[str, GroupState], new: Sequence[EntryRange], most: int | None) -> None:
        """Begin to reserve what follows a batch, if that is much (Limits.worth_ahead). Not if others are in the groups:
        they could read it meanwhile. Not if entries were released: the next batch begins with them. new: what was
        reserved since they stood like this."""
        options = self._options
        if options.no_ack or options.delivery == "at-most-once" or options.claim_idle is not None:
            return
        if any(state.others or state.released for state in groups.values()):
            return
        left = Counter(self._admission.backlog(self._groups.heads, groups))
        left.subtract(per_stream(new))
        reserving, room = self._contents.reserving, self._room.at_most(most)
        if reserving.is_worth_it(left, room):
            turn = self._contents.turn + 1
            self._memory.expect(Prefetch(reserving, list(groups), room, turn, self._groups.heads))
