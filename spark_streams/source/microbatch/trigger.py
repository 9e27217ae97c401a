"""One trigger: look at the streams and groups, choose the entries of the batch, create its offset.

A normal trigger (`latestOffset`) of a query without noAck, and the commands that it sends:

1. It waits for the background worker (MicroBatchStream._settled): the XACK of the batch before the last, and the
   reservation for this batch.
2. It looks at streams and groups in one round trip (Observer.state_at): for each stream XLEN (XINFO STREAM if the
   stream is new or has changed), XINFO GROUPS, XINFO CONSUMERS. It compares them with the checkpoint, without asking
   the server.
3. It chooses the entries of the batch (ContentsChooser.choose): first those reserved ahead, then new entries. It
   reserves new entries with CLIENT REPLY SKIP, XREADGROUP … >, XINFO GROUPS, XINFO CONSUMERS (reserve.py).
4. The batch up to `begin` is in Spark's commit log. The trigger reads the notes of its tasks, and deletes the consumers
   of its claimed entries (Acknowledging.acknowledge_in_background).
5. It returns the end of the batch. The background worker does the rest while tasks run (MicroBatchStream._triggered).
   If many entries are left, it reserves the next batch first. Then: XACK of the batch up to `begin`, its commit marks,
   removal of entries that leave their streams.

If there is nothing to read, the trigger acknowledges before it returns. If the groups are not as this run has left
them, see query_state.py.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange, entries_per_stream
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.microbatch.acknowledge import Acknowledged, Acknowledging
from spark_streams.source.microbatch.background import Job
from spark_streams.source.microbatch.batch_contents import BatchContents, BatchRequest, ContentsChooser
from spark_streams.source.microbatch.prefetch import Prefetch
from spark_streams.source.microbatch.query_state import Observer, QueryState
from spark_streams.source.microbatch.run_state import RunState
from spark_streams.source.offset import Count, Offset
from spark_streams.source.quota import BatchQuota
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class TriggerResult:
    """Result of a trigger."""

    end: Offset | None  # of the batch; None: there is nothing to read
    run: RunState  # what the run knows now
    ranges: list[EntryRange] = field(default_factory=list)  # entries of the batch
    jobs: list[Job] = field(default_factory=list)  # for the background worker
    prefetch: Prefetch | None = None  # the reservation of the next batch: the worker's first job


class Trigger:
    """Runs the triggers of one query. now: a monotonic clock, in seconds."""

    def __init__(
        self,
        options: SourceOptions,
        observer: Observer,
        contents: ContentsChooser,
        acknowledging: Acknowledging,
        losses: DataLoss,
        now: Callable[[], float],
    ) -> None:
        self._options = options
        self._observer = observer
        self._contents = contents
        self._acknowledging = acknowledging
        self._losses = losses
        self._quota = BatchQuota.from_options(options)
        self._now = now

    def next(
        self, server: Server, begin: Offset, limit: int | None, run: RunState, save: Callable[[RunState], None]
    ) -> TriggerResult:
        """Return the next batch, of at most `limit` entries. If there is nothing to read, acknowledge `begin` first.

        begin: it is in Spark's commit log (docs/internals/facts.md, S4); run: what this run knows; save: called with
        what the run knows, so that a failure later in the trigger does not forget counted losses.

        Losses that no offset has yet are written into the end of the batch. If there is nothing to read, a batch
        without entries carries them."""
        is_second_look = False
        while True:
            state = self._observer.state_at(server, begin, run, save)
            save(state.run)
            acknowledged = state.run.acknowledged
            quota = self._quota.with_entries(limit)
            request = BatchRequest(secrets.token_hex(6), quota, run.turn + 1, self._now(), is_second_look)
            request = self._contents.with_sizes(server, state, request)
            contents = self._contents.choose(server, state, request)
            save(contents.run)
            if contents:
                return self._with_batch(server, state, contents, acknowledged, request)
            if contents.takes_no_more and not is_second_look:
                # Another client has taken the reserved entries since this trigger looked.
                run, is_second_look = contents.run.unknown(), True
                continue
            result = self._without_batch(server, state, contents, acknowledged, request.token)
            if result is not None:
                return result
            run, is_second_look = contents.run.unknown(), False

    def _with_batch(
        self,
        server: Server,
        state: QueryState,
        contents: BatchContents,
        acknowledged: Acknowledged,
        request: BatchRequest,
    ) -> TriggerResult:
        """Return a batch with entries. The batch up to `begin` is acknowledged while its tasks run."""
        end, ranges = self._end(state, contents, request.token), contents.ranges
        if contents.claimed:
            ranges = self._contents.claimed_ranges(server, contents) + ranges
        jobs: list[Job] = []
        if not acknowledged.includes(state.begin):
            acknowledged, jobs = self._acknowledging.acknowledge_in_background(server, state.begin, acknowledged)
        prefetch = self._contents.plan_prefetch(state, contents, replace(request, turn=request.turn + 1))
        if self._losses.unlogged:  # also losses that were noticed after the choice
            end = end.with_lost(self._losses.take_unlogged())
        return TriggerResult(end, self._run_after(state, contents, acknowledged), ranges, jobs, prefetch)

    def _without_batch(
        self, server: Server, state: QueryState, contents: BatchContents, acknowledged: Acknowledged, token: str
    ) -> TriggerResult | None:
        """Acknowledge `begin`, because there is nothing to read. Return None if the trigger must look again.

        Other clients may have handed entries to the query since it looked. An AvailableNow run would end while they are
        pending. This happens once: the next look asks the server, so that `above` is known."""
        if acknowledged.includes(state.begin):
            self._acknowledging.sweep_when_idle(server, state.begin, acknowledged)
        else:
            acknowledged, entries = self._acknowledging.acknowledge_and_count(server, state.begin, acknowledged)
            was_handed_entries = entries < sum(group.ours for group in state.groups.values())
            if state.above is None and was_handed_entries:
                return None
        end = self._batch_of_losses(state, contents, token)
        return TriggerResult(end, self._run_after(state, contents, acknowledged))

    def _batch_of_losses(self, state: QueryState, contents: BatchContents, token: str) -> Offset | None:
        """Return the end of a batch without entries if the checkpoint must save new losses or positions, or forget a
        stream (failOnDataLoss=false). Without it, each start of the query would report the same losses again. Return
        None if there is nothing to save: at the next trigger, the checkpoint has all of it."""
        begin = contents.run.with_skipped_positions(state.begin, state.groups, state.unacknowledged)
        has_changed = (
            begin.positions != state.checkpoint.positions or begin.counts.keys() != state.checkpoint.counts.keys()
        )
        if not (self._losses.unlogged or (self._losses.allowed and has_changed)):
            return None
        # All entries that are reserved above the checkpoint stay reserved.
        nothing = BatchContents({}, takes_no_more=True, run=contents.run)
        return self._end(replace(state, begin=begin), nothing, token).with_lost(self._losses.take_unlogged())

    def _end(self, state: QueryState, contents: BatchContents, token: str) -> Offset:
        counts = contents.run.account.at_checkpoint(_remaining(state.above, contents))
        return end_of_batch(state.begin, contents, token, counts, self._options)

    def _run_after(self, state: QueryState, contents: BatchContents, acknowledged: Acknowledged) -> RunState:
        """Return what the run knows after the trigger: the groups are at the ends of the reserved ranges."""
        groups = state.groups
        positions = {stream: group.last_delivered for stream, group in groups.items()}
        return replace(
            contents.run,
            is_known=True,
            heads=state.heads,
            expected_positions=positions | {entries.stream: entries.last for entries in contents.new},
            acknowledged=acknowledged,
            prefetched=None,
            admission=contents.run.admission.after_trigger(bool(contents)),
            turn=contents.run.turn + 1,
            account=contents.run.account.without_unlogged(),
            others_have_pending=any(other.pending for group in groups.values() for other in group.others),
        )


def _remaining(above: Mapping[str, int] | None, contents: BatchContents) -> Mapping[str, int]:
    """Return per stream how many entries that an earlier run reserved above the checkpoint stay reserved after this
    batch. If the batch has new entries, there are none. above: see QueryState."""
    return Counter(above) - entries_per_stream(contents.ranges) if contents.takes_no_more and above else {}


def end_of_batch(
    begin: Offset, contents: BatchContents, token: str, counts: Mapping[str, Count], options: SourceOptions
) -> Offset:
    """Return the offset at the end of a batch, which names all entries of the batch. counts: at its positions; options:
    of the query. Pure."""
    end = begin.after(contents.ranges, token, contents.claimed)
    notes = bool(contents) and options.mode == "DEADLETTER"
    return replace(end, counts=counts, no_ack=options.no_ack, notes=notes)
