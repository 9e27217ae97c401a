"""One trigger: look at the query, choose what the batch holds, make the batch and its offset.

A healthy trigger (`latestOffset`) of a query with a pending list, and the commands that it sends:

1. It waits for the background worker: the XACK of the batch before the last, and what was reserved ahead.
2. It looks at streams and groups in one round trip: for each stream XLEN (XINFO STREAM if the stream is new or has
   changed), XINFO GROUPS, XINFO CONSUMERS. It compares them with the checkpoint, without asking the server.
3. It chooses what the batch holds: what was reserved ahead, then new entries. It reserves these with CLIENT REPLY SKIP,
   XREADGROUP … >, XINFO GROUPS, XINFO CONSUMERS (reserve.py).
4. It takes the notes of the tasks of the batch up to `begin`, which is in Spark's commit log, and closes its claims.
5. It returns the end of the batch. The background worker does the rest while tasks read: XACK of the batch up to
   `begin`, its commit marks, the entries that leave their streams; and, if much is left, reserving the next batch.

If there is nothing to read, step 5 is done at once. If anything is not as this run has left it, see query_state.py.
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
from spark_streams.source.microbatch.batch_contents import BatchContents, ContentsChooser, Wish
from spark_streams.source.microbatch.prefetch import Prefetch
from spark_streams.source.microbatch.query_state import Observer, QueryState
from spark_streams.source.microbatch.run_state import RunState
from spark_streams.source.offset import Count, Offset
from spark_streams.source.quota import BatchQuota
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Triggered:
    """What came of a trigger. end: of the batch, None if there is nothing to read; run: what the run knows now; ranges:
    what the batch holds; jobs: what is to be done beside its tasks, and after these, ahead: what is to be reserved
    there."""

    end: Offset | None
    run: RunState
    ranges: list[EntryRange] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    ahead: Prefetch | None = None


class Trigger:
    """The triggers of one query, one after the other. now: a monotonic clock, in seconds."""

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
    ) -> Triggered:
        """The next batch, of at most `most` entries. If there is nothing to read, `begin` is acknowledged before this
        returns. begin: it is in Spark's commit log (docs/internals/facts.md, S4); run: what is known; save: keeps what
        must outlive a failure of the rest of the trigger, such as losses that were counted.

        A batch of no entries is made if losses were counted that the checkpoint does not have yet."""
        state = self._observer.state_at(server, begin, run, save)
        save(state.run)
        acknowledged = state.run.acknowledged
        if self._is_at_most_once:
            acknowledged = self._acknowledging.hold_new_streams(
                server, [s for s in state.groups if s not in begin.positions], acknowledged
            )
        wish = Wish(secrets.token_hex(6), self._quota.with_entries(limit), run.turn + 1, self._now())
        contents = self._contents.choose(server, state, wish)
        save(contents.run)
        if not contents:
            if not acknowledged.includes(state.begin):
                acknowledged, entries = self._acknowledging.acknowledge_and_count(server, state.begin, acknowledged)
                if state.above is None and entries < sum(group.ours for group in state.groups.values()):
                    # Other clients have handed us entries since the batch was made. Look once more, at the server:
                    # otherwise an AvailableNow run would end with these pending.
                    return self.next(server, begin, limit, contents.run.unknown(), save)
            else:
                self._acknowledging.sweep_when_idle(server, state.begin, acknowledged)
            losses = self._batch_of_losses(state, contents, wish.token)
            return Triggered(losses, self._run_after(state, contents, acknowledged))
        end, ranges = self._end(state, contents, wish.token), contents.ranges
        if contents.claimed:
            ranges = self._contents.claimed_ranges(server, contents) + ranges
        if self._is_at_most_once and end.claimed:
            acknowledged = self._acknowledging.hold_claimed(server, end, acknowledged)
        jobs: list[Job] = []
        if not acknowledged.includes(state.begin):
            acknowledged, jobs = self._acknowledging.acknowledge_in_background(server, state.begin, acknowledged)
        ahead = self._contents.ahead(state, contents, replace(wish, turn=wish.turn + 1))
        if self._losses.unlogged:  # also what was found missing since the batch was chosen
            end = end.with_lost(self._losses.logged())
        return Triggered(end, self._run_after(state, contents, acknowledged), ranges, jobs, ahead)

    @property
    def _is_at_most_once(self) -> bool:
        return self._options.delivery == "at-most-once"

    def _batch_of_losses(self, state: QueryState, contents: BatchContents, token: str) -> Offset | None:
        """The end of a batch of no entries, if the checkpoint is to remember losses (failOnDataLoss=false), or where
        the query goes on, or that it knows nothing of a stream any more. Otherwise each start of the query would find
        this again. The next trigger finds nothing, so it makes no such batch."""
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
        """What the run knows when the trigger is over: the groups stand behind what it has reserved."""
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
    """How many entries are reserved above the checkpoint that the batch does not take: an earlier run has left them. If
    new entries were reserved, nothing is left. above: see QueryState."""
    return Counter(above) - entries_per_stream(contents.ranges) if contents.is_closed and above else {}


def end_of_batch(
    begin: Offset, contents: BatchContents, token: str, counts: Mapping[str, Count], options: SourceOptions
) -> Offset:
    """The offset at the end of a batch that begins here, which names all that it holds. counts: what is known at its
    positions; options: how it is read. Pure."""
    end = begin.after(contents.ranges, token, contents.claimed)
    notes = bool(contents) and options.mode == "DEADLETTER"
    return replace(end, counts=counts, no_ack=options.no_ack, notes=notes)
