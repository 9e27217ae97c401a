"""What a task does: read its ranges, page by page, as record batches. It only reads (FACTS S7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_streams.errors import StreamStateError
from spark_streams.model.keys import is_returned
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.findings.messages import Place
from spark_streams.source.findings.remedies import error_of, remedy_of
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.partitioning import Task
from spark_streams.source.rows.column_tally import ColumnTally, Found
from spark_streams.source.rows.columns import Columns
from spark_streams.source.rows.malformed import Dead
from spark_streams.source.rows.returned_page import ReturnedPage, Tries
from spark_streams.source.task.fetcher import Fetch, Page
from spark_streams.spark.worker import freeze_imported_modules
from spark_streams.wire.entries.entry_page import EntryPage
from spark_streams.wire.session import Session

_log = logging.getLogger("spark_streams.source")


@dataclass(frozen=True)
class Told:
    """Whom a task tells what it finds. lost: of a run and how many of its entries are gone (failOnDataLoss=false);
    counted: of a run whose count is an estimate, and how many of its entries were read; unreadable: of rows that do not
    fit the schema (mode DEADLETTER), the stream of each of their page's rows, and the rows; found: of columns."""

    lost: Callable[[EntryRange, int], None]
    counted: Callable[[EntryRange, int], None]
    unreadable: Callable[[str | pa.Array, Dead], None]
    found: Found


def read_task(
    server: Session,
    member: Membership,
    task: Task,
    columns: Columns,
    told: Told,
    fail_on_data_loss: bool,
    limits: Limits = LIMITS,
) -> Iterator[pa.RecordBatch]:
    """The task's rows, those of a stream in its order; one page in memory, and the next on its way.

    `_deliveries` is how often an entry has been delivered, this batch included: 1 at the first time. Reading counts
    nothing, so a task that is run again sees the same number. Null: the entry is not pending (noAck, at-most-once, or
    acknowledged since by somebody else).
    Raises DataLossError when entries that were reserved are gone and that is not allowed, GroupMissingError,
    ServerError.
    """
    freeze_imported_modules()
    fetch = Fetch(server, member, task.ranges, columns.wants_deliveries, not fail_on_data_loss, limits)
    tally = ColumnTally(columns)
    with tally.telling(told.found):
        for page in fetch.pages():
            if page.rows:
                entries, streams, tries = _as_they_were(page)
                decoded = columns.batch(entries, page.rows, streams, page.deliveries, tries)
                if decoded.dead is not None:
                    # What becomes of an entry, becomes of it where it stands now.
                    told.unreadable(page.streams, replace(decoded.dead, page=page.entries))
                tally.add(entries, page.rows, streams, decoded)
                yield decoded.batch
            for run, count in page.ended:
                if not run.counted:
                    told.counted(run, count)
                if not run.counted or count >= run.count:
                    continue
                if fail_on_data_loss:
                    raise _data_loss(server, member, run, count)
                told.lost(run, run.count - count)


def _as_they_were(page: Page) -> tuple[EntryPage, str | pa.Array, Tries | None]:
    """The page's entries and their streams, of those that came back for another try as they were at first."""
    first = page.streams if isinstance(page.streams, str) else page.streams[0].as_py()
    if not is_returned(first):
        return page.entries, page.streams, None
    returned = ReturnedPage(page.entries, page.streams)
    if returned.strangers:
        _log.warning(
            "stream %r: %d entries were not written by a query (what comes back for another try has an envelope): they "
            "are read as they stand", first, returned.strangers,
        )  # fmt: skip
    return returned, returned.streams(), returned.tries()


def _data_loss(server: Session, member: Membership, entries: EntryRange, count: int) -> StreamStateError:
    gone = entries.count - count
    finding = Finding(
        Kind.BATCH_GONE,
        entries.stream,
        above=entries.after,
        position=entries.last,
        lost=gone,
        what=f"{gone} of {entries.count} entries",
    )
    return error_of(finding, remedy_of(finding, lenient=False), Place(member, str(server.address)))
