"""Acknowledging a batch that is in Spark's commit log: take the notes of its tasks, acknowledge its entries, set the
commit marks, and remove entries that leave their stream.

Exactly the entries that the offset names are acknowledged, delivered until the time that it names. So XACK may be
repeated, and an entry that another client hands over meanwhile is not acknowledged unread. The commit marks are set
after the last XACK. So a mark proves that its batch is acknowledged (or set aside, with maxDeliveries).

A run that knows nothing yet reads the marks of all streams of the checkpoint, also of those that it no longer reads,
and sets each one that is behind. So each acknowledgement leaves all marks as new as the checkpoint. If a mark is behind
later, its batch was not acknowledged yet, or the server was restored. Then all that is pending up to the position is
committed, unless the offset says that the stream may have old entries which no batch has.

Entries leave their streams (onCommit) after every group has acknowledged them: a batch's streams are swept
(retention.py) when it is acknowledged. The first sweep of a run also takes all streams of the checkpoint, and all
returned streams: it removes what a crash has left. A stream in which another consumer or group is behind is swept again
now and then. Entries of returned streams (group.retries) are removed whatever onCommit says: their group alone reads
them. A sweep removes nothing above the query's own position if it is alone in its group: a group that was moved (XGROUP
SETID) has not read what it has passed. So any stream may be swept at any time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.counters import BAD, DEAD, RETRIED
from spark_streams.connector.keys import is_returned
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.retention import RetentionState, Sweeper
from spark_streams.connector.source.group.recovery import DataLoss, Finding, RunCounters, entries_lost, notes_lost
from spark_streams.connector.source.group.retries import Retries
from spark_streams.connector.source.group.snapshot import StreamSnapshot, fetch_marks
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.pending.poison_batch import PoisonBatch
from spark_streams.connector.source.rows.column_report import STREAM_MODES, ColumnReport, ColumnWarnings
from spark_streams.connector.source.settled import Settled
from spark_streams.connector.source.task.notes import (
    LetterDestination,
    collect,
    delete_missing,
    fetch_missing,
    noted_streams,
)
from spark_streams.connector.source.trigger.roles import GroupRole
from spark_streams.connector.source.trigger.run_state import Job, RunState
from spark_streams.connector.wire.connection import Server

_log = logging.getLogger("spark_streams.source")


class Removing:
    """The removing of one query. retries: what it knows of its returned streams; now: a monotonic clock, in seconds."""

    def __init__(self, options: SourceOptions, retries: Retries, now: Callable[[], float]) -> None:
        on_commit = options.on_commit
        # of the input streams, and of returned ones
        inputs = {} if on_commit == "keep" else {False: Sweeper(on_commit == "delete", now)}
        self._sweepers = {**inputs, True: Sweeper(exactly=True, now=now)}
        self._retries = retries
        self._now = now
        self._behind: set[str] = set()  # streams with entries that another group or consumer is not done with
        self._next_sweep = 0.0
        self._swept: set[str] = set()  # streams of which a sweeper knows the readers

    def due(self, up_to: Offset, is_first: bool) -> set[str]:
        """Return the streams to sweep now that all up to here is acknowledged. is_first: nothing was swept yet."""
        if is_first:
            self._forget()
        streams = self.due_later()
        if is_first:
            streams |= self._retries.returned
        if up_to.token:  # else the query begins: nothing of its input streams is committed
            streams |= {*(up_to.streams if is_first else up_to.taken_from)}
        return {stream for stream in streams if is_returned(stream) in self._sweepers}

    def _forget(self) -> None:
        """Forget all streams: the server may be another one."""
        self._behind, self._next_sweep, self._swept = set(), 0.0, set()
        for sweeper in self._sweepers.values():
            sweeper.forget()

    def due_later(self) -> set[str]:
        """Return the streams to sweep again, with a batch or without."""
        return self._behind.copy() if self._behind and self._now() >= self._next_sweep else set()

    def seconds_until_due(self) -> float:
        """Return the time until `due_later` has streams; inf if it has none."""
        return self._next_sweep - self._now() if self._behind else math.inf

    def sweep(self, client: GroupClient, up_to: Offset, due: Set[str]) -> None:
        """Sweep these streams. up_to: where the query is. Raises StreamStateError, ServerReplyError."""
        limits = {stream: at.position for stream in due if (at := up_to.at.get(stream)) and at.read is not None}
        todo = sorted(due)
        self._forget_gone(up_to, due)
        for of_returned, sweeper in self._sweepers.items():
            mine = [stream for stream in todo if is_returned(stream) == of_returned]
            for start in range(0, len(mine), client.limits.sweep_streams):
                page = mine[start : start + client.limits.sweep_streams]
                swept = sweeper.sweep(client.server, page, limits)
                self._behind -= {*page}
                self._behind |= {
                    stream.decode() for stream, readers in swept.items() if _is_behind(readers, up_to[stream.decode()])
                }
        if todo and self._behind and self._now() >= self._next_sweep:
            self._next_sweep = self._now() + client.limits.lag_check

    def _forget_gone(self, up_to: Offset, due: Set[str]) -> None:
        """Forget the readers of streams that the query no longer reads: streams of a pattern come and go."""
        gone = self._swept - up_to.at.keys() - due
        self._swept = (self._swept - gone) | due
        if gone:
            names = {stream.encode() for stream in gone}
            for sweeper in self._sweepers.values():
                sweeper.forget_streams(names)

    def dead_lettered(self, server: Server, stream: str) -> None:
        """Entries of the stream were acknowledged with their dead letters, outside of any batch."""
        if is_returned(stream):
            self._sweepers[True].sweep(server, [stream])


def _is_behind(readers: RetentionState, position: StreamId) -> bool:
    """Whether some reader has still to acknowledge what the group was given, or to be given what is read up to here:
    entries that were read through a claim stand anywhere."""
    return readers.needed < readers.delivered or readers.needed <= position


@dataclass(frozen=True)
class LoggedBatch:
    """A batch that is in Spark's commit log: the checkpoint ends with it. run: what the run knows."""

    settled: Settled
    run: RunState
    has_others: bool = False  # a group has other consumers

    @classmethod
    def of_run(
        cls, client: GroupClient, start: Offset, run: RunState, seen: Mapping[str, StreamSnapshot] | None = None
    ) -> Self:
        """seen: streams at this moment. The marks of others are as this run has left them; a run that has acknowledged
        nothing yet asks for them. Raises ServerError."""
        seen = {stream: snapshot for stream, snapshot in (seen or {}).items() if stream in start.at}
        marks = {stream: snapshot.mark for stream, snapshot in seen.items()}
        if run.acknowledged is None:
            marks |= fetch_marks(client, [stream for stream in start.at if stream not in seen])
            settled = Settled(start, marks)
        else:
            settled = Settled.left_by_run(run.acknowledged, start).with_marks(marks)
        return cls(settled.without(stream for stream, snapshot in seen.items() if snapshot.group is None), run)

    @property
    def start(self) -> Offset:
        return self.settled.checkpoint

    @property
    def is_acknowledged(self) -> bool:
        """Whether the batch is acknowledged, after an earlier trigger took the tasks' notes."""
        read = self.start.taken_from
        return self.run.has_acknowledged(self.start) or (bool(read) and self.settled.knows(read))

    def taken_by_others(self, acknowledged: int) -> int:
        """Return how many entries of the batch others have claimed or acknowledged, if so many were acknowledged. It
        counts those that others have handed over, too."""
        return max(0, self.start.held - acknowledged) if self.has_others else 0


@dataclass
class Acknowledging:
    """Acknowledges one query's batches, at once or beside the tasks of the next one. Every step may be repeated."""

    options: SourceOptions
    losses: DataLoss
    counters: RunCounters
    removing: Removing
    poison: PoisonBatch
    role: GroupRole

    def __post_init__(self) -> None:
        self._retries = len(self.options.retry_delay or ())
        self._removes = self.options.on_commit != "keep" or self._retries > 0
        self._column_warnings = ColumnWarnings(STREAM_MODES, self._retries > 0)

    def at_once(self, client: GroupClient, batch: LoggedBatch) -> tuple[RunState, int]:
        """Take the notes of the batch, acknowledge it, and remove entries that leave their streams. Return what the run
        knows then, and how many entries were acknowledged. Raises GroupMissingError, ServerError."""
        posted, is_read = self._take_notes(client, batch)
        due, run = self._after(batch)
        entries = self._commit(client, batch, posted, is_read)
        if due:
            self.removing.sweep(client, batch.start, due)
        return run, entries

    def in_background(self, client: GroupClient, batch: LoggedBatch) -> tuple[RunState, list[Job]]:
        """Do the same, but return as jobs what can run beside tasks: XACK with the marks, and the removal."""
        posted, is_read = self._take_notes(client, batch)
        acknowledge = partial(self._commit, batch=batch, posted=posted, is_read=is_read)
        due, run = self._after(batch)
        removals: list[Job] = [partial(self.removing.sweep, up_to=batch.start, due=due)] if due else []
        return run, [acknowledge, *removals]

    def _commit(self, client: GroupClient, batch: LoggedBatch, posted: int, is_read: bool) -> int:
        """Acknowledge the batch, and return how many entries were. A warning tells of those that others have taken."""
        entries, start = posted + self.role.commit(client, batch.settled, is_read), batch.start
        taken = batch.taken_by_others(entries)
        if taken and start.has_pending_list and batch.run.acknowledged is not None:
            _log.warning(
                "%s written entries of group %r were claimed or acknowledged by others: claimed ones come again",
                f"{taken:,} of {start.held:,}", start.group,
            )  # fmt: skip
        return entries

    def _take_notes(self, client: GroupClient, batch: LoggedBatch) -> tuple[int, bool]:
        """Take the notes before the batch is acknowledged: the mark says that they were taken. Return how many entries
        were acknowledged with them, and whether tasks were given the entries of the batch. A run asks for the record of
        a batch that it has not planned itself, and of its first one in any case."""
        asks = (bool(batch.start.record) or batch.settled.is_first) and batch.run.given != batch.start.token
        is_read, lost = True, list[Finding]()
        if batch.run.cut == batch.start.token != "":  # a server that has returned to before that does not know it
            is_read = False
        elif asks:
            is_read, lost = self.poison.has_read(client.server, batch.settled)
        token = batch.start.token if is_read else ""
        return 0 if batch.is_acknowledged else self._post_notes(client, batch, token, lost), is_read

    def _after(self, batch: LoggedBatch) -> tuple[set[str], RunState]:
        """Return the streams to sweep with this batch, and what the run knows once it is acknowledged."""
        start, run = batch.start, batch.run
        is_first = run.acknowledged is None or not run.acknowledged.token
        removes = self._removes or run.removes or any(map(is_returned, start.streams))
        due = self.removing.due(start, is_first) if is_first or removes else set()
        knows_fields = run.knows_fields or (not batch.settled.is_first and bool(start.taken_from))
        return due, replace(run, acknowledged=start, removes=removes or bool(due), knows_fields=knows_fields)

    def _post_notes(self, client: GroupClient, batch: LoggedBatch, token: str, findings: Sequence[Finding]) -> int:
        """Take the notes of the tasks: dead letters, missing entries, bad values. Return how many were acknowledged.
        token: of the batch whose notes count; "" if its entries were set aside: a late task may have read them.
        findings: about its record."""
        start, read = batch.start, batch.start.taken_from
        may_miss = self.losses.allowed or batch.settled.is_first  # an earlier run may have had other options
        missing = fetch_missing(client, read, token) if may_miss else {}
        takes_all = self.options.mode == "DEADLETTER" or batch.settled.is_first or start.notes
        streams = start.streams if takes_all else read[:1]
        # Of a stream that was not in this batch, the server may have lost the last batch with its notes.
        noting = {*read, *(s for s in start.at if batch.settled.standing(s).is_behind)} if start.notes else ()
        numbers = {stream: start.at[stream].number for stream in noting}
        noted, lost = noted_streams(client, streams, numbers)
        self.losses.report(*findings, *_missing_entries(start, missing), *(notes_lost(s, start[s]) for s in lost))
        delete_missing(client, missing)
        destination = LetterDestination(self.options.dead_letter_stream, self._retries)
        notes = collect(client, noted, token, destination, batch.settled.is_earlier)
        self.counters.entries(DEAD).update(notes.dead_letters)
        self.counters.entries(RETRIED).update(notes.retried)
        if notes.columns:
            report = ColumnReport.of_batch(notes.columns)
            for column, values in report.bad.items():
                bad = {(stream, column): count for stream, count in values.counts.items()}
                self.counters.values(BAD).update(bad)
            self._column_warnings.warn(report, start.held, "of this batch")
        return notes.dead_letters.total() + notes.retried.total()


def _missing_entries(start: Offset, missing: Mapping[str, int]) -> Iterator[Finding]:
    """Yield what tasks of the batch that ends here have found missing. The tasks of a strict query stop for it."""
    for stream, count in missing.items():
        if count:
            above = min((part.after for part in start.ranges(stream)), default=MIN_ID)
            yield entries_lost(stream, count, above, "of a batch", start[stream], is_harmless=True)
