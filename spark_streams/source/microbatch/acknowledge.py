"""What becomes of a batch once it is in the commit log: notes are taken, entries acknowledged, claims closed; then
entries leave their stream (remove), where they are to.

Elsewhere entries are acknowledged at once (trigger: at-most-once), because they are delivered again (query_state), or
with their dead letter (recovery.dead_entries). XACK itself is in source.pending_list.

Acknowledged is what is pending for our consumer between the last mark (commit_marks) and the batch's end: what
somebody hands to our consumer below that was read by no batch (source.recovery.handed_entries)."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.ids import StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.column_report import ColumnReport
from spark_streams.source.column_warnings import STREAM_MODES, ColumnWarnings
from spark_streams.source.group.bookmarks import Bookmarks
from spark_streams.source.group.commit_marks import Marks
from spark_streams.source.group.data_loss import DataLoss
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.background import BackgroundWorker
from spark_streams.source.microbatch.remove import Removing
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, acknowledge, claimed_ranges
from spark_streams.source.recovery.claim_consumers import delete_claim_consumers
from spark_streams.source.run_counters import RunCounters
from spark_streams.source.task_notes import collect
from spark_streams.wire.server import Server


class Acknowledging:
    """The acknowledging of one query's batches, at once or beside the next one's tasks. Every step may be repeated.

    worker: the thread for the latter; counters: where what tasks have noted is counted. Notes on columns there may
    always be, others where entries may be lost or become dead letters.
    knows_fields: a batch of this run has been looked at for columns that no entry has a field for.
    """

    def __init__(
        self,
        worker: BackgroundWorker,
        options: SourceOptions,
        member: Membership,
        losses: DataLoss,
        counters: RunCounters,
        removing: Removing,
        limits: Limits,
    ) -> None:
        self._worker = worker
        self._member = member
        self._losses = losses
        self._removing = removing
        self._limits = limits
        self._noted = losses.allowed or options.mode == "DEADLETTER"
        self._letters_to = options.dead_letter_stream
        self._retries = len(options.retry_delay or ())
        self.bookmarks = Bookmarks() if options.no_ack else None
        self.marks = Marks(member.group, member.consumer, options.no_ack, options.delivery == "at-most-once")
        self._acknowledged: dict[str, StreamId] = {}
        self._done: Offset | None = None  # the last one that was acknowledged, or is being
        self._counters = counters
        self._column_warnings = ColumnWarnings(STREAM_MODES, self._retries > 0)
        self.knows_fields = False

    def is_done(self, up_to: Offset) -> bool:
        """Whether this offset has been acknowledged, or is being; streams that vanished under it do not count."""
        return self._done is not None and up_to.covers(self._done)

    def now(self, server: Server, up_to: Offset) -> None:
        """What tasks noted becomes letters, then our entries up to `up_to` are acknowledged, and its claims.

        Raises GroupMissingError, ServerError.
        """
        self._set_bookmarks(server, up_to)
        self.take_notes(server, up_to)
        self._acknowledge(server, up_to, self._ranges(up_to))
        self._close_claims(server, up_to)
        self._removing.sweep(server, up_to, self._removing.due(up_to))
        self._acknowledged.update(up_to.positions)
        self._done = up_to

    def _set_bookmarks(self, server: Server, up_to: Offset) -> None:
        """Before notes are taken: of some batches they tell how many entries were read, and then the group does."""
        if self.bookmarks is not None:
            self.bookmarks.set(server, self._member, up_to)

    def _acknowledge(self, server: Server, up_to: Offset, ranges: Sequence[PendingRange]) -> None:
        acknowledge(server, self._member, ranges, self._limits)
        if up_to.token:
            self.marks.write(server, up_to.positions, up_to.token)
        else:
            self.marks.begin(server, up_to.positions)

    def beside(self, server: Server, up_to: Offset) -> None:
        """The same, with the acknowledging in the background; but claims are closed at once: the next offset does not
        name them, and after a crash they would be taken for some that no offset names."""
        self._set_bookmarks(server, up_to)
        self.take_notes(server, up_to)
        self._close_claims(server, up_to)
        ranges, due = self._ranges(up_to), self._removing.due(up_to)
        self._worker.submit(lambda server: self._acknowledge(server, up_to, ranges))
        if due:
            self._worker.submit(lambda server: self._removing.sweep(server, up_to, due))
        self._acknowledged.update(up_to.positions)
        self._done = up_to

    def forget(self) -> None:
        """Take nothing for acknowledged, as after a restart."""
        self._acknowledged = {}
        self._done = None
        self.marks.forget()
        self._removing.forget()

    def idle(self, server: Server, up_to: Offset) -> None:
        """There is nothing to read, and what is acknowledged already ends here."""
        self._removing.sweep(server, up_to, self._removing.due_later())

    def _ranges(self, up_to: Offset) -> list[PendingRange]:
        if up_to.no_ack or not up_to.token:  # its batch was not pending; or the query begins: nothing is committed
            return []
        ranges = [PendingRange(stream, at, self._begin_of(stream, up_to)) for stream, at in up_to.positions.items()]
        return [one for one in ranges if one.after < one.last]

    def _begin_of(self, stream: str, up_to: Offset) -> StreamId:
        """Above which entry what is pending for us was given to a batch that is not acknowledged yet: after a restart
        that may be the one before, too."""
        held, floor = up_to.shares.get(stream), self._acknowledged.get(stream, self.marks.floor(stream))
        if held is None or floor < (held.begun or held.after):
            return floor
        return max(floor, held.after)

    def _close_claims(self, server: Server, up_to: Offset) -> None:
        acknowledge(server, self._member, claimed_ranges(up_to.claimed), self._limits)
        delete_claim_consumers(server, self._member, up_to.claimed)

    def take_notes(self, server: Server, up_to: Offset) -> None:
        """What the tasks of the batch that ends here have noted: dead letters, losses, bad values."""
        if self.is_done(up_to):
            return
        is_first, read = self._done is None, up_to.taken_from
        # An earlier run may have had other options.
        all_of_them = self._noted or is_first or up_to.notes
        if not (all_of_them or read):
            return
        notes = collect(
            server,
            self._member,
            up_to.streams if all_of_them else read if up_to.no_ack else read[:1],
            up_to.token,
            self._letters_to,
            read if up_to.notes else (),
            self._losses.allowed,
            self._limits,
            self._retries,
        )
        for stream in notes.deleted:
            self._losses.add(stream, 1, "the notes on them were deleted. Their number is not known, and 1 is counted")
        if not self._is_committed(up_to):
            self._losses.noted(notes.lost, "trimmed or deleted while they were pending")
        self._losses.at_the_end.clear()
        self._counters.dead.update(notes.letters)
        self._counters.retried.update(notes.retried)
        self._take_columns(notes.columns, up_to)
        self.knows_fields = self.knows_fields or not is_first

    def _is_committed(self, up_to: Offset) -> bool:
        """Whether an earlier run has taken this batch's notes: what there is now comes from tasks that went on after
        their batch, and may have found its entries removed."""
        marks = self.marks.of
        return bool(up_to.shares) and all(s in marks and marks[s].up_to >= up_to[s] for s in up_to.shares)

    def _take_columns(self, reports: Sequence[ColumnReport], up_to: Offset) -> None:
        report = ColumnReport.of_batch(reports)
        for column, values in report.bad.items():
            self._counters.bad.update({(stream, column): count for stream, count in values.counts.items()})
        self._column_warnings.say(report, up_to.held, "of this batch")
