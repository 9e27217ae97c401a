"""One trigger: look at the streams and groups, choose the entries of the batch, create its offset.

A normal trigger (`latestOffset`) of a query whose group delivers (roles.py), and the commands that it sends:

1. It waits for the background worker (query.triggering).
2. It looks at streams and groups in one round trip (observe.py): for each stream XLEN (XINFO STREAM if it is new or has
   changed), XINFO GROUPS. If all is as this run has left it, no more is asked.
3. It chooses the entries of the batch (batch_contents.py): first those reserved ahead, then new entries, with CLIENT
   REPLY SKIP, XREADGROUP … >, XINFO GROUPS, XINFO CONSUMERS, TIME (roles.py).
4. The batch up to `start` is in Spark's commit log: it posts the dead letters that its tasks have noted.
5. It returns the end of the batch. While tasks run, the background worker reserves the next batch, if many entries are
   left. Then: XACK of the batch up to `start`, the commit marks, removal of entries that leave their streams.

If there is nothing to read, the trigger acknowledges the batch itself. If old entries, or entries to claim, may be in
the next batch, or with maxDeliveries, it does so before it chooses. If the groups are not as this run has left them, or
nothing is known yet, see observe.py.

Each write of the driver, by the commands of its request and the kind of key (docs/reference/keys.md), and Spark's two
logs, in about the order of a query's life. Commands joined by `+` are in one transaction or request. What only reads is
left out, and what the sink writes (sink/ledger.py).

killed after                             the next run
SET session                              has a session of its own; this one expires
SET lease                                takes the lease over: at once if it sees that the process is dead, else after
                                         its session has expired
SET first                                begins at the same place, unless another client has created the group
XGROUP CREATE + XGROUP CREATECONSUMER + SET committed
                                         finds the group with the mark of its begin, from which nothing was read yet
XGROUP CREATECONSUMER                    finds the consumer
XGROUP CREATECONSUMER + SET committed    under a new checkpoint: finds the mark, and begins at the group
SET begun, DEL begun                     knows that its pattern has begun, or has a checkpoint instead
DEL first                                has the group with its mark, or a checkpoint that names the stream. After
                                         RSTREAM_STREAM_MISSING it has neither, and begins at startingOffsets
SET attempts, SET attempts + DEL tried   counts one more run that the batch has killed
HSET told                                (a task) tells the sink again; of its pattern, too
HSET tried                               (a task) asks the sink whether that batch is complete
SET delays                               sets the delays again
XREADGROUP                               finds the entries pending above the position: the next batch
XCLAIM                                   finds them pending: at or below the position as old entries, above it as
                                         the next batch
SET committed                            after XACK: finds that the batch is acknowledged. When the first batch is
                                         planned (mark `<checkpoint>-first`): knows that Spark's log has a batch that
                                         begins where the mark says
XGROUP SETID + SET committed             a repair: follows the mark to where the group is, with a batch without entries.
                                         onNewCheckpoint=restart, and no batch yet: does so again
offset log                               reads the batch again by its ranges (query.planning). The trigger after
                                         its commit acknowledges it and the batch before (`owed`), if it was not
commit log                               acknowledges this batch, and the one before if it was not, then plans
XACK                                     acknowledges the same ranges again
DEL missing                              has counted the missing entries in the run before: reports them no more
XADD, XADD + XACK                        dead letters and retries: each exists once (connector/deadletter/post.py)
XTRIM, XDEL                              removes the same entries again
XGROUP CREATE                            a bookmark: destroys the scratch group
XGROUP SETID + SET committed + XREADGROUP
                                         a bookmark: sets its group to the committed position again
XGROUP DESTROY                           a bookmark: destroys the scratch group if there is one

At most one batch is unacknowledged: step 1 waits for its XACK before there is another offset. If that fails, the run
knows nothing any more, and acknowledges that batch before it chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import next_token
from spark_streams.connector.source.group.begin import Opened
from spark_streams.connector.source.group.snapshot import GroupState
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.source.partitioning import Part
from spark_streams.connector.source.pending.claim import Claims
from spark_streams.connector.source.pending.poison_record import first_stream
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.source.trigger.acknowledge import Acknowledging, LoggedBatch
from spark_streams.connector.source.trigger.batch_contents import BatchContents, BatchRequest, ContentsChooser, Prefetch
from spark_streams.connector.source.trigger.observe import Observer
from spark_streams.connector.source.trigger.roles import GroupRole
from spark_streams.connector.source.trigger.run_state import Job, QueryState, RunState


@dataclass(frozen=True)
class TriggerResult:
    """Result of a trigger."""

    end: Offset | None  # of the batch; None: there is nothing to read
    run: RunState  # what the run knows now
    parts: list[Part] = field(default_factory=list)  # entries of the batch
    jobs: list[Job] = field(default_factory=list)  # for the background worker
    prefetch: Prefetch | None = None  # the reservation of the next batch: the worker's first job


@dataclass(frozen=True)
class Trigger:
    """Runs the triggers of one query."""

    options: SourceOptions
    observer: Observer
    contents: ContentsChooser
    claims: Claims
    acknowledging: Acknowledging
    now: Callable[[], float]  # a monotonic clock, in seconds

    def next(self, client: GroupClient, opened: Opened, limit: int | None, run: RunState) -> TriggerResult:
        """Return the next batch, of at most `limit` entries. If there is nothing to read, acknowledge the batch that
        ends at the checkpoint. A corrected position that no offset has yet is written into the end of the batch, or of
        one without entries: otherwise a strict query would stop again."""
        state = self.observer.state_at(client, opened, run)
        if not state.run.is_known:
            poison = self.contents.poison.begin(client, state.start, state.groups)
            state = replace(state, run=replace(state.run, poison=poison))
        state = self._acknowledged_if_needed(client, state)
        request = BatchRequest(
            next_token(opened.checkpoint.token),
            BatchQuota.from_options(self.options).with_entries(limit),
            run.turn + 1,
            self.now(),
        )
        request = self.contents.with_sizes(client, state, request)
        state = self._claimed(client, state, request)
        contents = self.contents.choose(client, state, request)
        # Without entries, all that is reserved above the checkpoint stays reserved.
        is_corrected = contents.run.is_corrected or not opened.checkpoint.at.keys() <= state.start.at.keys()
        is_batch = bool(contents) or is_corrected
        end = end_of_batch(state, contents, request.token, self.options, self.contents.role) if is_batch else None
        contents, jobs, is_taken = self._acknowledged(client, state, contents)
        if is_taken and not is_batch:
            return self.next(client, opened, limit, contents.run)
        run = self._run_after(state, contents, is_batch)
        if not contents:
            return TriggerResult(end, run)
        next_request = replace(request, turn=request.turn + 1)
        prefetch = self.contents.plan_prefetch(state, contents, next_request, run.positions, client.limits)
        return TriggerResult(end, run, contents.parts, jobs, prefetch)

    def _acknowledged_if_needed(self, client: GroupClient, state: QueryState) -> QueryState:
        """Acknowledge the batch up to `start` now if old entries may follow it or it has some, or with a record."""
        start = state.start
        may_wait = not (start.old or start.record or state.old or self._may_claim(state))
        if may_wait or state.is_acknowledged:
            return state
        batch = replace(LoggedBatch.of_run(client, start, state.run), has_others=state.has_others)
        run, entries = self.acknowledging.at_once(client, batch)
        state = replace(state, run=run, is_acknowledged=True)
        return self.observer.with_new_snapshots(client, state, list(state.groups)) if entries or start.held else state

    def _may_claim(self, state: QueryState) -> bool:
        has_pending = any(other.pending for group in state.groups.values() for other in group.others)
        is_released = any(group.released for group in state.groups.values())
        return is_released or (self.options.claim_idle is not None and has_pending)

    def _claimed(self, client: GroupClient, state: QueryState, request: BatchRequest) -> QueryState:
        """Claim entries of dead consumers, and released ones, and look at their streams again."""
        if not self._may_claim(state):
            return state
        claimed = self.claims.claim(client, state.groups, request.quota)
        return self.observer.with_new_snapshots(client, state, claimed) if claimed else state

    def _acknowledged(
        self, client: GroupClient, state: QueryState, contents: BatchContents
    ) -> tuple[BatchContents, list[Job], bool]:
        """Acknowledge `start`: beside the tasks of the batch, or now if there are none. Return whether others had taken
        entries of it then: as many that were handed over seemed to be these."""
        run, jobs, is_taken = contents.run, list[Job](), False
        if state.is_acknowledged and not contents and run.removes:
            self.acknowledging.removing.sweep(client, state.start, self.acknowledging.removing.due_later())
        elif not state.is_acknowledged:
            batch = replace(LoggedBatch.of_run(client, state.start, run), has_others=state.has_others)
            if contents:
                run, jobs = self.acknowledging.in_background(client, batch)
            else:
                run, entries = self.acknowledging.at_once(client, batch)
                is_taken = batch.taken_by_others(entries) > 0
        return replace(contents, run=run), jobs, is_taken

    def _run_after(self, state: QueryState, contents: BatchContents, is_batch: bool) -> RunState:
        """Return what the run knows after the trigger. is_batch: it has made a batch, also one without entries."""
        groups = {**state.groups, **contents.after}
        return replace(
            contents.run,
            is_known=True,
            heads=state.heads,
            # The next trigger finds a group that is at another place.
            positions={**contents.run.positions, **{part.stream: part.range.last for part in contents.fresh}},
            start=None if is_batch else contents.run.start,
            is_corrected=contents.run.is_corrected and not is_batch,
            prefetched=None,
            admission=contents.run.admission.after_trigger(bool(contents)),
            turn=contents.run.turn + 1,
            others_have_pending=any(other.pending for group in groups.values() for other in group.others),
        )


def end_of_batch(
    state: QueryState, contents: BatchContents, token: str, options: SourceOptions, role: GroupRole
) -> Offset:
    """Return the offset at the end of a batch, which names all entries of the batch. Pure."""
    start = state.start
    at = dict(start.at)
    for stream, head in state.heads.items():
        if stream in at and head.added is not None:
            at[stream] = at[stream]._replace(added=max(head.added, at[stream].added))
    for stream, before in state.groups.items():
        group = contents.after.get(stream, before)
        if stream in contents.new or stream in contents.old:
            at[stream] = _after_batch(at[stream], contents, stream, group, role.token_of(token))
        elif group.others and at[stream].read is not None:  # they may read on, and leave before the next batch
            at[stream] = at[stream]._replace(read=None, group_read=at[stream].read or 0)
    is_acknowledged = state.is_acknowledged or not start.token
    taken = {stream: sum(part.count for part in parts) for stream, parts in contents.old.items()}
    left = {
        *state.left,
        *(stream for stream, entries in state.old.items() if entries > taken.get(stream, 0)),
        *(stream for stream, group in contents.after.items() if group.ours > _known_of(stream, state, contents)),
        *contents.run.poison.streams,
        *(stream for stream, position in at.items() if position.read is None),
    }
    record = start.record if start.record in at else first_stream(at)  # the same stream as long as it is read
    return Offset(
        start.group,
        start.consumer,
        at,
        new=contents.new,
        old=contents.old,
        unacknowledged=start.new if start.has_pending_list and not is_acknowledged else {},
        left=frozenset(left & at.keys()),
        token=token,
        has_pending_list=role.has_pending_list,
        notes=bool(contents) and options.mode == "DEADLETTER",
        record=record if options.max_deliveries is not None or contents.run.poison.streams else "",
    )


def _known_of(stream: str, state: QueryState, contents: BatchContents) -> int:
    """Return how many entries are pending for the query after it has reserved new ones, as far as it knows which."""
    unacknowledged = () if state.is_acknowledged else state.start.pending(stream)
    new = contents.new.get(stream)
    return sum(part.count for part in unacknowledged) + state.old.get(stream, 0) + (0 if new is None else new.count)


def _after_batch(at: StreamOffset, contents: BatchContents, stream: str, group: GroupState, token: str) -> StreamOffset:
    """Return where the query is in a stream after a batch.

    number: of the stream's batches, one more.
    read: up to the position; None unless the query was alone before and after.
    added: as the head says (`end_of_batch`), or what was read if that is more.
    missed: what the group does not count of it, if it stands at the position; its lag has that (FACTS R16).
    group_read: what a shared group has read, with what was missed, or less if it stands above the position.
    """
    new = contents.new.get(stream)
    position = at.position if new is None else new.last
    read = None if at.read is None or group.others else at.read + (0 if new is None else new.count)
    lag = at.missed if group.lag is None or (group.entries_read or 0) + group.lag < at.added else group.lag
    missed = min(at.missed, lag)
    is_at_group = group.last_delivered == position
    if read is not None and group.entries_read is not None and is_at_group:
        missed = read - group.entries_read
    group_read = 0
    if read is None and group.entries_read is not None:
        group_read = group.entries_read + missed if is_at_group else at.known_read
    return StreamOffset(
        position,
        number=at.number + 1,
        token=token,
        read=read,
        added=max(at.added, read or 0),
        missed=missed,
        group_read=group_read,
    )
