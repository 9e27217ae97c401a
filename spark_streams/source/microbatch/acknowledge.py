"""What is done with a batch once it is in Spark's commit log: take the notes of its tasks, acknowledge its entries,
close its claims, and remove entries that leave their stream (remove.py).

    delivery         when entries are acknowledged                              by
    at-least-once    with the trigger after their commit, while tasks read      begin
                     at once if there is nothing to read, or nothing is known   now
    at-most-once     in `plan`: the offset is logged, no task has read          before_it_is_read
    noAck            not at all: the group is set to what is committed          begin, now

Elsewhere entries are acknowledged because they will be delivered again (reconcile.py), or together with their dead
letter (recovery/dead_entries.py). XACK itself is in pending_list.py.

Only what is pending for our consumer between its commit mark and the end of the batch is acknowledged. No batch has
read what another client hands to our consumer below the mark (recovery/handed_entries.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.model.keys import is_returned
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.group.bookmarks import Bookmarks, set_bookmarks
from spark_streams.source.group.commit_marks import CommitMarks, InFlight, Marks
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.background import Job
from spark_streams.source.microbatch.remove import Removing
from spark_streams.source.notes.column_warnings import STREAM_MODES, ColumnWarnings
from spark_streams.source.notes.task_notes import Destination, OpenedNotes, collect, notes_key
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, acknowledge, claimed_ranges, pending_ranges
from spark_streams.source.recovery.claim_consumers import delete_claim_consumers
from spark_streams.source.rows.column_report import ColumnReport
from spark_streams.source.run_counters import RunCounters
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Acknowledged:
    """What a run knows to be acknowledged. up_to: the last offset that was, or is being; floors: up to where, per
    stream, by this run; marks: the query's commit marks; bookmarks: where the groups stand that are (noAck), None: not
    known; covered: streams of which the tasks' notes on the last batch count no more, because what they say is counted
    already; removes: committed entries leave some stream; knows_fields: a batch of this run has been looked at for
    columns that no entry has a field for."""

    up_to: Offset | None = None
    floors: Mapping[str, StreamId] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)
    bookmarks: Bookmarks | None = None
    covered: frozenset[str] = frozenset()
    removes: bool = False
    knows_fields: bool = False

    def includes(self, offset: Offset) -> bool:
        """Whether the batch that ends at this offset is acknowledged, or is being. The offset may lack streams that
        have vanished since."""
        return self.up_to is not None and offset.covers(self.up_to)

    def pending(self, up_to: Offset) -> list[PendingRange]:
        """What is pending for us of the batches up to this offset, claims apart."""
        if not up_to.token:  # the query begins: nothing is committed
            return []
        ranges = [
            PendingRange(stream, at, self._begin_of(stream, up_to))
            for stream, at in up_to.positions.items()
            if not up_to.no_ack or self._had_a_list(stream)
        ]
        if up_to.no_ack:  # the batch was not pending, and has read all that the stream held there
            ranges += [PendingRange(stream, up_to[stream], share.after) for stream, share in up_to.shares.items()]
        return [one for one in ranges if one.after < one.last]

    def _had_a_list(self, stream: str) -> bool:
        """Whether a run with a pending list has committed last, although the batch was read without one: it has gone on
        from an older copy of the checkpoint."""
        mark = self.marks.by_stream.get(stream)
        return mark is not None and not mark.no_ack

    def _begin_of(self, stream: str, up_to: Offset) -> StreamId:
        """Above which entry what is pending for us was given to a batch that is not acknowledged yet: after a restart
        that may be the one before, too. A group that was set back has given entries again."""
        held, floor = up_to.shares.get(stream), self.floors.get(stream, self.marks.floor(stream))
        if held is not None and stream in self.floors and held.after < floor:
            return held.after
        if held is None or floor < (held.begun or held.after):
            return floor
        return max(floor, held.after)


class Acknowledging:
    """The acknowledging of one query's batches, at once or beside the next one's tasks. Every step may be repeated.

    counters: where what tasks have noted is counted. Notes on columns there may always be, others where entries may be
    lost or become dead letters. known, in what follows: what the run knows to be acknowledged.
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
        self.marks = CommitMarks(member, options.no_ack, options.delivery == "at-most-once")
        self._removes = options.on_commit != "keep" or self._retries > 0
        self._counters = counters
        self._column_warnings = ColumnWarnings(STREAM_MODES, self._retries > 0)

    def now(self, server: Server, up_to: Offset, known: Acknowledged) -> Acknowledged:
        """What tasks noted becomes letters, then our entries up to `up_to` are acknowledged, and its claims; then
        entries leave their streams.

        Raises GroupMissingError, ServerError.
        """
        return self.now_counted(server, up_to, known)[0]

    def now_counted(self, server: Server, up_to: Offset, known: Acknowledged) -> tuple[Acknowledged, int]:
        """The same, and how many entries of our own consumer were acknowledged."""
        acknowledged, settle, jobs = self._steps(server, up_to, known)
        entries = settle(server)
        for job in jobs:
            job(server)
        return acknowledged, entries

    def begin(self, server: Server, up_to: Offset, known: Acknowledged) -> tuple[Acknowledged, list[Job]]:
        """The same, but for what can be done beside the tasks of the next batch: that is left to these jobs. Claims are
        closed at once: the next offset does not name them, and after a crash they would be taken for some that no
        offset names."""
        acknowledged, settle, jobs = self._steps(server, up_to, known)
        return acknowledged, [settle, *jobs]

    def _steps(
        self, server: Server, up_to: Offset, known: Acknowledged
    ) -> tuple[Acknowledged, Callable[[Server], int], list[Job]]:
        """Take notes, close claims and set bookmarks. Return what is acknowledged once the two others are done: the
        XACK of our own entries, and the jobs that follow it."""
        if self._options.no_ack:  # before notes are taken: of some batches they tell how many entries were read
            known = replace(known, bookmarks=set_bookmarks(server, self._member, up_to, known.bookmarks))
        self.take_notes(server, up_to, known)
        if up_to.claimed:
            acknowledge(server, self._member, claimed_ranges(up_to.claimed), self._limits)
            delete_claim_consumers(server, self._member, up_to.claimed)
        is_listed = not (up_to.no_ack and self._options.no_ack)
        ranges = known.pending(up_to) if is_listed else []
        removes, due = self._due(up_to, known)
        if up_to.token:
            marks = self.marks.mark_committed(known.marks, up_to.positions, up_to.token)
        else:
            marks = self.marks.mark_begin(known.marks, up_to.positions)

        def settle(there: Server) -> int:
            entries = acknowledge(there, self._member, ranges, self._limits)
            self.marks.write(there, known.marks, marks)
            return entries

        jobs: list[Job] = [lambda there: self._removing.sweep(there, up_to, due)] if due else []
        floors = {**known.floors, **up_to.positions}
        knows_fields = known.knows_fields or (known.up_to is not None and bool(up_to.taken_from))
        acknowledged = Acknowledged(up_to, floors, marks, known.bookmarks, removes=removes, knows_fields=knows_fields)
        return acknowledged, settle, jobs

    def idle(self, server: Server, up_to: Offset, known: Acknowledged) -> None:
        """There is nothing to read, and what is acknowledged already ends here."""
        if known.removes:
            self._removing.sweep(server, up_to, self._removing.due_later())

    def hold(self, server: Server, streams: Sequence[str], known: Acknowledged) -> Acknowledged:
        """at-most-once: write the marks of streams that the checkpoint does not name, before any of their entries are
        reserved: nobody may trim what is acknowledged and not read yet (CommitMarks.hold_streams)."""
        marks = self.marks.hold_streams(known.marks, streams)
        self.marks.write(server, known.marks, marks)
        return replace(known, marks=marks)

    def hold_claimed(self, server: Server, end: Offset, known: Acknowledged) -> Acknowledged:
        """at-most-once: the mark holds the claimed entries of the batch that ends here until it is committed, so that
        nobody trims them before tasks read them. It holds what is above it anyway."""
        firsts = [replace(one, limit=1) for one in claimed_ranges(end.claimed)]
        lowest: dict[str, StreamId] = {}
        for one in pending_ranges(server, self._member, firsts, 1, limits=self._limits):
            lowest[one.stream] = min(one.last, lowest.get(one.stream, one.last))
        marks = self.marks.hold_batch(known.marks, InFlight(end.token, lowest=lowest))
        self.marks.write(server, known.marks, marks)
        return replace(known, marks=marks)

    def with_ids(self, server: Server, ranges: Sequence[EntryRange]) -> list[EntryRange]:
        """at-most-once: the ranges of a batch that is to be acknowledged before it is read. If others read from the
        group, too, a range takes the ids of our entries along: after XACK the pending list cannot tell which were ours.
        What is not pending any more is left out. Raises GroupMissingError, ServerError."""
        found: list[EntryRange] = []
        for entries in ranges:
            ours = PendingRange(entries.stream, entries.last, entries.after, entries.consumer)
            if entries.owned or entries.ids:
                found.append(entries)
            else:
                found += pending_ranges(server, self._member, [ours], entries.count, keep_ids=True, limits=self._limits)
        return found

    def before_it_is_read(self, server: Server, end: Offset) -> None:
        """at-most-once: acknowledge the batch that ends here. Raises GroupMissingError, ServerError."""
        shares = [PendingRange(stream, end[stream], held.after or MIN_ID) for stream, held in end.shares.items()]
        acknowledge(server, self._member, [*shares, *claimed_ranges(end.claimed)], self._limits)

    def _due(self, up_to: Offset, known: Acknowledged) -> tuple[bool, set[str]]:
        """Whether entries leave any streams, and those that they leave with this batch."""
        is_first = known.up_to is None or not known.up_to.token
        removes = self._removes or known.removes or any(map(is_returned, up_to.streams))
        due = self._removing.due(up_to, is_first) if is_first or removes else set()
        return removes or bool(due), due

    def take_notes(self, server: Server, up_to: Offset, known: Acknowledged) -> None:
        """What the tasks of the batch that ends here have noted: dead letters, losses, bad values."""
        if known.includes(up_to):
            return
        is_first, read = known.up_to is None, up_to.taken_from
        # If noAck is given up, the group leaves the position of the last batch before an offset has the number of
        # entries up to there. If the run ends between the two, the next run needs the notes once more.
        keeps_read = up_to.no_ack and not self._options.no_ack
        had_kept = known.up_to is not None and known.up_to.no_ack and not self._options.no_ack
        # An earlier run may have had other options.
        all_of_them = self._noted or is_first or up_to.notes or had_kept
        if not (all_of_them or read):
            return
        notes = collect(
            server,
            self._member,
            up_to.streams if all_of_them else read if up_to.no_ack else read[:1],
            up_to.token,
            Destination(self._options.dead_letter_stream, self._retries),
            OpenedNotes(read if up_to.notes else (), self._losses.allowed, keeps_read),
            self._limits,
        )
        for stream in notes.deleted:
            key = notes_key(stream, self._member).decode("utf-8", "replace")
            self._losses.report(Finding(Kind.NOTES_GONE, stream, lost=None, detail=key))
        if notes.lost and not _is_committed(known.marks, up_to):
            self._report_noted({s: count for s, count in notes.lost.items() if s not in known.covered}, up_to)
        self._counters.dead.update(notes.dead_letters)
        self._counters.retried.update(notes.retried)
        if notes.columns:
            self._take_columns(notes.columns, up_to)

    def _report_noted(self, lost: Mapping[str, int], up_to: Offset) -> None:
        """Entries that tasks of the batch have found missing."""
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
    """Whether an earlier run has taken this batch's notes: what there is now comes from tasks that went on after their
    batch, and may have found its entries removed."""
    return bool(up_to.shares) and all(
        s in marks.by_stream and marks.by_stream[s].up_to >= up_to[s] for s in up_to.shares
    )
