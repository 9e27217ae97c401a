"""One trigger: look at the streams and groups, choose the entries of the batch, create its offset.

A healthy trigger (`latestOffset`) of a query with a pending list, and the commands that it sends:

1. It waits for the background worker: the XACK of the batch before the last, and the reservation for this batch.
2. It looks at streams and groups in one round trip: for each stream XLEN (XINFO STREAM if the stream is new or has
   changed), XINFO GROUPS, XINFO CONSUMERS. It compares them with the checkpoint, without asking the server.
3. It chooses the entries of the batch: first those reserved ahead, then new entries. It reserves new entries with
   CLIENT REPLY SKIP, XREADGROUP … >, XINFO GROUPS, XINFO CONSUMERS (reserve.py).
4. It reads the notes of the tasks of the batch up to `begin`, which is in Spark's commit log, and closes its claims.
5. It returns the end of the batch. The background worker does the rest while tasks run: XACK of the batch up to
   `begin`, its commit marks, removal of entries that leave their streams. If many entries are left, it reserves the
   next batch.

If there is nothing to read, the trigger does step 5 at once. If the groups are not as this run has left them, see
query_state.py.
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
class Triggered:
    """Result of a trigger. end: of the batch, None if there is nothing to read; run: what the run knows now; ranges:
    entries of the batch; jobs: for the background worker; ahead: the reservation of the next batch, its last job."""

    end: Offset | None
    run: RunState
    ranges: list[EntryRange] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    ahead: Prefetch | None = None


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
        self,
        server: Server,
        begin: Offset,
        limit: int | None,
        run: RunState,
        save: Callable[[RunState], None],
        is_second_look: bool = False,
    ) -> Triggered:
        """Return the next batch, of at most `limit` entries. If there is nothing to read, acknowledge `begin` first.

        begin: it is in Spark's commit log (docs/internals/facts.md, S4); run: what this run knows; save: keeps what
        must outlive a failure of the rest of the trigger, such as counted losses; is_second_look: see BatchRequest.

        If losses were counted that the checkpoint does not have yet, the batch has no entries."""
        state = self._observer.state_at(server, begin, run, save)
        save(state.run)
        acknowledged = state.run.acknowledged
        if self._is_at_most_once:
            acknowledged = self._acknowledging.hold_new_streams(
                server, [s for s in state.groups if s not in begin.positions], acknowledged
            )
        request = BatchRequest(
            secrets.token_hex(6), self._quota.with_entries(limit), run.turn + 1, self._now(), is_second_look
        )
        contents = self._contents.choose(server, state, request)
        save(contents.run)
        if contents.is_closed and not contents and not is_second_look:
            return self.next(server, begin, limit, contents.run.unknown(), save, is_second_look=True)
        if not contents:
            if not acknowledged.includes(state.begin):
                acknowledged, entries = self._acknowledging.acknowledge_and_count(server, state.begin, acknowledged)
                if state.above is None and entries < sum(group.ours for group in state.groups.values()):
                    # Other clients have handed entries to the query since it looked. It looks again: otherwise an
                    # AvailableNow run would end while they are pending.
                    return self.next(server, begin, limit, contents.run.unknown(), save)
            else:
                self._acknowledging.sweep_when_idle(server, state.begin, acknowledged)
            losses = self._batch_of_losses(state, contents, request.token)
            return Triggered(losses, self._run_after(state, contents, acknowledged))
        end, ranges = self._end(state, contents, request.token), contents.ranges
        if contents.claimed:
            ranges = self._contents.claimed_ranges(server, contents) + ranges
        if self._is_at_most_once and end.claimed:
            acknowledged = self._acknowledging.hold_claimed(server, end, acknowledged)
        jobs: list[Job] = []
        if not acknowledged.includes(state.begin):
            acknowledged, jobs = self._acknowledging.acknowledge_in_background(server, state.begin, acknowledged)
        ahead = self._contents.ahead(state, contents, replace(request, turn=request.turn + 1))
        if self._losses.unlogged:  # also losses that were noticed after the choice
            end = end.with_lost(self._losses.logged())
        return Triggered(end, self._run_after(state, contents, acknowledged), ranges, jobs, ahead)

    @property
    def _is_at_most_once(self) -> bool:
        return self._options.delivery == "at-most-once"

    def _batch_of_losses(self, state: QueryState, contents: BatchContents, token: str) -> Offset | None:
        """Return the end of a batch without entries, if the checkpoint must save new losses or positions, or forget a
        stream (failOnDataLoss=false). Otherwise each start of the query would report this again. None: there is nothing
        to save. The next trigger has nothing to save either."""
        begin = contents.run.past_what_was_passed_over(state.begin, state.groups, state.unacknowledged)
        has_changed = begin.positions != state.logged.positions or begin.counts.keys() != state.logged.counts.keys()
        if not (self._losses.unlogged or (self._losses.allowed and has_changed)):
            return None
        nothing = BatchContents({}, is_closed=True, run=contents.run)
        return self._end(replace(state, begin=begin), nothing, token).with_lost(self._losses.logged())

    def _end(self, state: QueryState, contents: BatchContents, token: str) -> Offset:
        counts = contents.run.account.at_checkpoint(_remaining(state.above, contents))
        return end_of_batch(state.begin, contents, token, counts, self._options)

    def _run_after(self, state: QueryState, contents: BatchContents, acknowledged: Acknowledged) -> RunState:
        """Return what the run knows after the trigger: the groups are at the ends of the reserved ranges."""
        groups = state.groups
        stands = {stream: group.last_delivered for stream, group in groups.items()}
        return replace(
            contents.run,
            is_known=True,
            heads=state.heads,
            stands=stands | {entries.stream: entries.last for entries in contents.new},
            acknowledged=acknowledged,
            ahead=None,
            admission=contents.run.admission.after_trigger(bool(contents)),
            turn=contents.run.turn + 1,
            account=contents.run.account.logged(),
            others_have_pending=any(other.pending for group in groups.values() for other in group.others),
        )


def _remaining(above: Mapping[str, int] | None, contents: BatchContents) -> Mapping[str, int]:
    """Return how many entries that an earlier run has reserved above the checkpoint are not in this batch, per stream.
    If the batch has new entries, there are none. above: see QueryState."""
    return Counter(above) - entries_per_stream(contents.ranges) if contents.is_closed and above else {}


def end_of_batch(
    begin: Offset, contents: BatchContents, token: str, counts: Mapping[str, Count], options: SourceOptions
) -> Offset:
    """Return the offset at the end of a batch, which names all entries of the batch. counts: at its positions; options:
    of the query. Pure."""
    end = begin.after(contents.ranges, token, contents.claimed)
    notes = bool(contents) and options.mode == "DEADLETTER"
    return replace(end, counts=counts, no_ack=options.no_ack, notes=notes)
