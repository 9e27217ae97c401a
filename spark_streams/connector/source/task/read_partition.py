"""Read the ranges of a task page by page, as record batches. A task only reads (FACTS S7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.keys import is_returned
from spark_streams.connector.source.group.recovery import Finding, Kind, MessageContext, error_of
from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import Task
from spark_streams.connector.source.rows.column_report import ColumnTally, ReportColumns
from spark_streams.connector.source.rows.columns import Columns, Dead
from spark_streams.connector.source.rows.returned_page import Attempts, ReturnedPage
from spark_streams.connector.source.task.fetcher import FetchedPage, Fetcher
from spark_streams.connector.spark.worker import freeze_imported_modules
from spark_streams.connector.wire.entries.entry_page import EntryPage
from spark_streams.connector.wire.session import Session

_log = logging.getLogger("spark_streams.source")


@dataclass(frozen=True)
class TaskCallbacks:
    """Functions that a task calls while it reads."""

    lost: Callable[[Range, int], None]  # with a range and the number of its missing entries (failOnDataLoss=false)
    # With the streams of a page's rows, and the rows that do not fit the schema (mode DEADLETTER).
    unreadable: Callable[[str | pa.Array, Dead], None]
    columns: ReportColumns  # with the report on columns
    noted: frozenset[str] = frozenset()  # streams of which an earlier run may have noted entries
    good: Callable[[Mapping[str, Sequence[bytes]]], None] = lambda entries: (
        None
    )  # with IDs of entries that fit, of these


def read_task(
    server: Session,
    member: Membership,
    task: Task,
    columns: Columns,
    callbacks: TaskCallbacks,
    fail_on_data_loss: bool,
    limits: Limits = LIMITS,
) -> Iterator[pa.RecordBatch]:
    """Yield the task's rows, those of a stream in its order. One page is in memory, and the next is requested.

    `_deliveries` counts the deliveries of an entry, including this batch. Reading counts none, so a task that runs
    again sees the same number. It is null if the entry is not pending.
    Raises DataLossError if reserved entries are missing and `fail_on_data_loss`; GroupMissingError, ServerError.
    """
    freeze_imported_modules()
    fetcher = Fetcher(server, member, task.parts, columns.wants_deliveries, not fail_on_data_loss, limits)
    tally = ColumnTally(columns)
    with tally.reporting(callbacks.columns):
        for page in fetcher.pages():
            if page.rows:
                entries, streams, attempts = _unwrap_returned(page)
                decoded = columns.batch(entries, page.rows, streams, page.deliveries, attempts)
                if decoded.dead is not None:
                    # A dead letter is made of the entry in the retry stream, not of the first one.
                    callbacks.unreadable(page.streams, replace(decoded.dead, page=page.entries))
                if callbacks.noted:
                    callbacks.good(_good_entries(page, decoded.dead, callbacks.noted))
                tally.add(entries, page.rows, streams, decoded)
                yield decoded.batch
            for whole, count in page.ended:
                if count >= whole.count:
                    continue
                if fail_on_data_loss:
                    raise _data_loss(server, member, whole, count)
                callbacks.lost(whole, whole.count - count)


def _good_entries(page: FetchedPage, dead: Dead | None, noted: frozenset[str]) -> dict[str, list[bytes]]:
    """Return the IDs of the entries of a page that fit the schema, by stream, of these streams."""
    ids = page.entries.ids().slice(0, page.rows).to_pylist()
    streams = [page.streams] * page.rows if isinstance(page.streams, str) else page.streams.to_pylist()
    bad = frozenset[int]() if dead is None else frozenset(dead.rows.tolist())
    good: dict[str, list[bytes]] = {}
    for row, (stream, entry) in enumerate(zip(streams, ids, strict=False)):
        if stream in noted and row not in bad:
            good.setdefault(stream, []).append(entry)
    return good


def _unwrap_returned(page: FetchedPage) -> tuple[EntryPage, str | pa.Array, Attempts | None]:
    """Return the page's entries and their streams. If entries are returned for a retry, these are the first entries and
    their streams."""
    first = page.streams if isinstance(page.streams, str) else page.streams[0].as_py()
    if not is_returned(first):
        return page.entries, page.streams, None
    returned = ReturnedPage(page.entries, page.streams)
    if returned.foreign:
        _log.warning(
            "stream %r has %d entries that no query has written: they lack the envelope of an entry that is retried. "
            "They are read unchanged.", first, returned.foreign,
        )  # fmt: skip
    return returned, returned.streams(), returned.attempts()


def _data_loss(server: Session, member: Membership, entries: Range, count: int) -> StreamStateError:
    missing = entries.count - count
    detail = f"of a batch of {entries.count}"
    finding = Finding(Kind.ENTRIES_LOST, entries.stream, above=entries.after, position=entries.last, lost=missing)
    return error_of(replace(finding, detail=detail), MessageContext(member, str(server.address)))
