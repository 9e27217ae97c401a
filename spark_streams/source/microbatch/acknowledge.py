"""Acknowledging a batch that is in Spark's commit log: take the notes of its tasks, acknowledge its entries, close its
claims, and remove entries that leave their stream (remove.py).

    delivery         when entries are acknowledged                                   by
    at-least-once    with the trigger after their commit, while tasks read           acknowledge_in_background
                     at once if there is nothing to read, or nothing is known        acknowledge
    noAck            never: the group is set to the committed position               both of the first two

Entries are also acknowledged because the group will deliver them again (reconcile.py), and together with their dead
letter (recovery/dead_entries.py). XACK itself is in pending_list.py.

Only entries of the query's consumer between its commit mark and the end of the batch are acknowledged. Below the mark
are entries that another client has handed over and that no batch has read (recovery/handed_entries.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.model.keys import is_returned
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.group.bookmarks import Bookmarks, set_bookmarks
from spark_streams.source.group.commit_marks import CommitMarks, Marks
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.background import Job
from spark_streams.source.microbatch.remove import Removing
from spark_streams.source.notes.column_warnings import STREAM_MODES, ColumnWarnings
from spark_streams.source.notes.task_notes import Destination, OpenedNotes, collect, notes_key
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, acknowledge, claimed_ranges
from spark_streams.source.recovery.claim_consumers import delete_claim_consumers
from spark_streams.source.rows.column_report import ColumnReport
from spark_streams.source.run_counters import RunCounters
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Acknowledged:
    """What a run knows to be acknowledged.

    up_to: the last offset that is or is being acknowledged; floors: position of each stream up to which this run has
    acknowledged; marks: the query's commit marks; bookmarks: positions of groups that are bookmarks (noAck), None:
    unknown; covered: streams for which the tasks' notes on the last batch no longer count, because their losses are
    counted already; removes: committed entries leave some stream; knows_fields: a batch of this run has been checked
    for columns that are fields of no entry.
    """

    up_to: Offset | None = None
    floors: Mapping[str, StreamId] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)
    bookmarks: Bookmarks | None = None
    covered: frozenset[str] = frozenset()
    removes: bool = False
    knows_fields: bool = False

    def includes(self, offset: Offset) -> bool:
        """Whether the batch that ends at this offset is or is being acknowledged. The offset may lack streams that no
        longer exist."""
        return self.up_to is not None and offset.covers(self.up_to)

    def pending(self, up_to: Offset) -> list[PendingRange]:
        """Return the pending ranges of the batches up to this offset, without claims."""
        if not up_to.token:  # the query begins: no batch is committed
            return []
        ranges = [
            PendingRange(stream, position, self._begin_of(stream, up_to))
            for stream, position in up_to.positions.items()
            if not up_to.no_ack or self._had_a_list(stream)
        ]
        if up_to.no_ack:  # the batch was not pending, and has read all entries of the stream there
            ranges += [PendingRange(stream, up_to[stream], share.after) for stream, share in up_to.shares.items()]
        return [pending for pending in ranges if pending.after < pending.last]

    def _had_a_list(self, stream: str) -> bool:
        """Whether the last commit was of a run with a pending list, although the batch was read without one: that run
        used an older copy of the checkpoint."""
        mark = self.marks.by_stream.get(stream)
        return mark is not None and not mark.no_ack

    def _begin_of(self, stream: str, up_to: Offset) -> StreamId:
        """Return the position above which pending entries belong to batches that are not acknowledged yet: after a
        restart possibly also the batch before. A group that was set back delivers entries again, in a new batch. What
        is pending within a batch that is acknowledged already was handed over since."""
        held, floor = up_to.shares.get(stream), self.floors.get(stream, self.marks.floor(stream))
        if held is not None and stream in self.floors and held.after < floor and not self.includes(up_to):
            return held.after
        if held is None or floor < (held.begun or held.after):
            return floor
        return max(floor, held.after)


class Acknowledging:
    """Acknowledges one query's batches, at once or beside the tasks of the next one. Every step may be repeated.

    counters: count what tasks have noted. Tasks may always note columns. They note entries if those may be lost or
    become dead letters.
    """

    def __init__(
        self,
        options: SourceOptions,
        member: Membership,
        losses: DataLoss,
        counters: RunCounters,
        removing: Removing,
        limits: Limits,
    ) -> None:
        self._options = options
        self._member = member
        self._losses = losses
        self._removing = removing
        self._limits = limits
        self._noted = losses.allowed or options.mode == "DEADLETTER"
        self._retries = len(options.retry_delay or ())
        self.marks = CommitMarks(member, options.no_ack)
        self._removes = options.on_commit != "keep" or self._retries > 0
        self._counters = counters
        self._column_warnings = ColumnWarnings(STREAM_MODES, self._retries > 0)

    def acknowledge(self, server: Server, up_to: Offset, acknowledged: Acknowledged) -> Acknowledged:
        """Write dead letters of noted entries, acknowledge the entries and claims up to `up_to`, and remove entries
        that leave their streams.

        Raises GroupMissingError, ServerError.
        """
        return self.acknowledge_and_count(server, up_to, acknowledged)[0]

    def acknowledge_and_count(self, server: Server, up_to: Offset, before: Acknowledged) -> tuple[Acknowledged, int]:
        """Do the same as `acknowledge`. Also return how many entries of the query's own consumer were acknowledged."""
        acknowledged, settle, jobs = self._steps(server, up_to, before)
        entries = settle(server)
        for job in jobs:
            job(server)
        return acknowledged, entries

    def acknowledge_in_background(
        self, server: Server, up_to: Offset, before: Acknowledged
    ) -> tuple[Acknowledged, list[Job]]:
        """Do the same, but return the steps that can run beside the tasks of the next batch as jobs. Claims are closed
        at once: the next offset does not name them, so after a crash they would look like unlogged claims."""
        acknowledged, settle, jobs = self._steps(server, up_to, before)
        return acknowledged, [settle, *jobs]

    def _steps(
        self, server: Server, up_to: Offset, before: Acknowledged
    ) -> tuple[Acknowledged, Callable[[Server], int], list[Job]]:
        """Take notes, close claims and set bookmarks. Return what is acknowledged after the remaining steps, and these
        steps: the XACK of the query's own entries, and the jobs that follow it."""
        if self._options.no_ack:
            before = replace(before, bookmarks=set_bookmarks(server, self._member, up_to, before.bookmarks))
        self.take_notes(server, up_to, before)
        if up_to.claimed:
            acknowledge(server, self._member, claimed_ranges(up_to.claimed), self._limits)
            delete_claim_consumers(server, self._member, up_to.claimed)
        is_listed = not (up_to.no_ack and self._options.no_ack)
        ranges = before.pending(up_to) if is_listed else []
        removes, due = self._due(up_to, before)
        if up_to.token:
            marks = self.marks.mark_committed(before.marks, up_to.positions)
        else:
            marks = self.marks.mark_begin(before.marks, up_to.positions)

        def settle(server: Server) -> int:
            entries = acknowledge(server, self._member, ranges, self._limits)
            self.marks.write(server, before.marks, marks)
            return entries

        jobs: list[Job] = [lambda server: self._removing.sweep(server, up_to, due)] if due else []
        floors = {**before.floors, **up_to.positions}
        knows_fields = before.knows_fields or (before.up_to is not None and bool(up_to.taken_from))
        acknowledged = Acknowledged(up_to, floors, marks, before.bookmarks, removes=removes, knows_fields=knows_fields)
        return acknowledged, settle, jobs

    def sweep_when_idle(self, server: Server, up_to: Offset, acknowledged: Acknowledged) -> None:
        """Remove entries that are due, if there is nothing to read and nothing to acknowledge."""
        if acknowledged.removes:
            self._removing.sweep(server, up_to, self._removing.due_later())

    def _due(self, up_to: Offset, acknowledged: Acknowledged) -> tuple[bool, set[str]]:
        """Return whether entries leave any stream, and the streams to sweep with this batch."""
        is_first = acknowledged.up_to is None or not acknowledged.up_to.token
        removes = self._removes or acknowledged.removes or any(map(is_returned, up_to.streams))
        due = self._removing.due(up_to, is_first) if is_first or removes else set()
        return removes or bool(due), due

    def take_notes(self, server: Server, up_to: Offset, acknowledged: Acknowledged) -> None:
        """Take the notes of the tasks of the batch that ends here: dead letters, losses, bad values."""
        if acknowledged.includes(up_to):
            return
        is_first, read = acknowledged.up_to is None, up_to.taken_from
        takes_all = self._noted or is_first or up_to.notes  # an earlier run may have had other options
        if not (takes_all or read):
            return
        notes = collect(
            server,
            self._member,
            up_to.streams if takes_all else read[:1],
            up_to.token,
            Destination(self._options.dead_letter_stream, self._retries),
            OpenedNotes(
                read if up_to.notes else (),
                self._losses.allowed,
                is_committed=_is_committed(acknowledged.marks, up_to),
            ),
            self._limits,
        )
        for stream in notes.deleted:
            key = notes_key(stream, self._member).decode("utf-8", "replace")
            self._losses.report(Finding(Kind.NOTES_GONE, stream, lost=None, detail=key))
        if self._losses.noted_token != up_to.token:  # a trigger that failed later has counted them
            self._report_noted({s: count for s, count in notes.lost.items() if s not in acknowledged.covered}, up_to)
            self._losses.noted_token = up_to.token
        self._counters.dead.update(notes.dead_letters)
        self._counters.retried.update(notes.retried)
        if notes.columns:
            self._take_columns(notes.columns, up_to)

    def _report_noted(self, lost: Mapping[str, int], up_to: Offset) -> None:
        """Report entries that tasks of the batch have found missing."""
        for stream, count in lost.items():
            if count:
                after = up_to.shares[stream].after if stream in up_to.shares else MIN_ID
                finding = Finding(Kind.BATCH_GONE, stream, above=after, position=up_to[stream], lost=count)
                self._losses.report(replace(finding, detail=f"{count} entries"), accepted=True)

    def _take_columns(self, reports: Sequence[ColumnReport], up_to: Offset) -> None:
        report = ColumnReport.of_batch(reports)
        for column, values in report.bad.items():
            self._counters.bad.update({(stream, column): count for stream, count in values.counts.items()})
        self._column_warnings.warn(report, up_to.held, "of this batch")


def _is_committed(marks: Marks, up_to: Offset) -> bool:
    """Whether an earlier trigger has committed this batch, after it took the tasks' notes."""
    return bool(up_to.shares) and all(
        s in marks.by_stream and marks.by_stream[s].up_to >= up_to[s] for s in up_to.shares
    )
