"""Read the ranges of a task page by page, as record batches. A task only reads (FACTS S7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.deadletter.envelope import FIELDS, MARK, NAMES, ReturnedEntry, is_origin
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.keys import is_returned
from spark_streams.connector.source.group.recovery import MessageContext, entries_lost, error_of
from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import Task
from spark_streams.connector.source.rows.column_report import ColumnTally, ReportColumns
from spark_streams.connector.source.rows.columns import Attempts, Columns, Dead, cast_values
from spark_streams.connector.source.task.fetcher import FetchedPage, Fetcher
from spark_streams.connector.spark.worker import freeze_imported_modules
from spark_streams.connector.wire.entry_page import EntryPage, UInt64s, last_values
from spark_streams.connector.wire.lines import Index, Mask
from spark_streams.connector.wire.session import Session

_WIDTH = len(NAMES)
_PLAIN_ID = "^[0-9]{1,18}-[0-9]{1,18}$"  # both numbers have less than 64 bits
_TIME = pa.timestamp("us", tz="UTC")
_log = logging.getLogger("spark_streams.source")


@dataclass(frozen=True)
class TaskCallbacks:
    lost: Callable[[Range, int], None]  # with a range and the number of its missing entries (failOnDataLoss=false)
    # With the streams of a page's rows, and the rows that do not fit the schema (mode DEADLETTER).
    unreadable: Callable[[str | pa.Array, Dead], None]
    columns: ReportColumns  # with the report on columns
    noted: frozenset[str] = frozenset()  # streams of which an earlier run may have noted entries
    # With the IDs of the entries of these streams that fit.
    good: Callable[[Mapping[str, Sequence[bytes]]], None] = lambda entries: None


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
            if page.entries.count:
                entries, streams, attempts = _unwrap_returned(page)
                decoded = tally.batch(entries, streams, page.deliveries, attempts)
                if decoded.dead is not None:
                    # A dead letter is made of the entry in the retry stream, not of the first one.
                    callbacks.unreadable(page.streams, replace(decoded.dead, page=page.entries))
                if callbacks.noted:
                    callbacks.good(_good_entries(page, decoded.dead, callbacks.noted))
                yield decoded.batch
            for whole, count in page.ended:
                missing = whole.count - count
                if missing <= 0:
                    continue
                if fail_on_data_loss:
                    raise _data_loss(server, member, whole, missing)
                callbacks.lost(whole, missing)


def _good_entries(page: FetchedPage, dead: Dead | None, noted: frozenset[str]) -> dict[str, list[bytes]]:
    """Return the IDs of the entries of a page that fit the schema, by stream, of these streams."""
    ids = page.entries.ids().to_pylist()
    streams = [page.streams] * len(ids) if isinstance(page.streams, str) else page.streams.to_pylist()
    bad = frozenset[int]() if dead is None else frozenset(dead.rows.tolist())
    good: dict[str, list[bytes]] = {}
    for row, (stream, entry) in enumerate(zip(streams, ids, strict=True)):
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


def _data_loss(server: Session, member: Membership, entries: Range, missing: int) -> StreamStateError:
    detail = f"of a batch of {entries.count}"
    finding = entries_lost(entries.stream, missing, entries.after, detail, entries.last)
    return error_of(finding, MessageContext(member, str(server.address)))


# -- returned entries --------------------------------------------------------------------------------------------------


class ReturnedPage(EntryPage):
    """The first entries of a page of entries that are returned for a retry, whole columns at a time. foreign: number of
    entries that no query has written; they are read unchanged.

    Each entry has its own fields and behind them an envelope of fifteen fields (deadletter.envelope), at fixed places.
    """

    def __init__(self, raw: EntryPage, retry_streams: str | pa.Array) -> None:
        """retry_streams: of the rows, one name or an array."""
        self._raw = raw
        self.count, self.deleted, self.last_id = raw.count, raw.deleted, raw.last_id
        offsets, self._names, self._values = raw.fields()
        self._offsets: Index = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        self._retry_streams = retry_streams
        self._has_envelope = self._find_envelopes()
        self._ends = self._offsets[1:] - np.where(self._has_envelope, _WIDTH, 0)
        self.foreign = self.count - int(self._has_envelope.sum())
        self._first_fields: tuple[pa.Array, pa.Array, pa.Array] | None = None

    def _find_envelopes(self) -> Mask:
        """Return which rows end with an envelope that names the first entry's stream and ID."""
        ends = self._offsets[1:] - _WIDTH
        has_envelope: Mask = ends >= self._offsets[:-1]
        rows = np.flatnonzero(has_envelope)
        positions = pa.array((ends[rows, None] + np.arange(_WIDTH)).ravel())
        expected = pa.array(FIELDS * len(rows), pa.binary())
        is_equal = pc.equal(self._names.take(positions), expected).to_numpy(zero_copy_only=False)
        has_envelope[rows] = is_equal.reshape(len(rows), _WIDTH).all(axis=1)
        rows = np.flatnonzero(has_envelope)
        origins = [self._values.take(pa.array(ends[rows] + NAMES.index(name))) for name in ("stream", "id")]
        if _are_plain(*origins):
            return has_envelope
        pairs = zip(*[column.to_pylist() for column in origins], strict=True)
        has_envelope[rows] = [is_origin(stream, entry_id) for stream, entry_id in pairs]
        return has_envelope

    def _envelope_field(self, name: str) -> pa.Array:
        """Return a field of the envelope; null if a row has no envelope."""
        return self._values.take(pa.array(self._ends + NAMES.index(name), mask=~self._has_envelope))

    def streams(self) -> pa.Array:
        return pc.coalesce(self._envelope_field("stream").cast(pa.string()), self._retry_streams)

    def attempts(self) -> Attempts:
        """Return the attempt of each row; 1 for a foreign entry."""
        deliveries = self._envelope_field("deliveries")
        valid = pc.if_else(pc.match_substring_regex(deliveries, "^[1-9][0-9]{0,8}$"), deliveries, b"1")
        previous = pc.fill_null(valid, b"0").cast(pa.string()).cast(pa.int32())
        first_failed, _ = cast_values(self._envelope_field("first-failed"), _TIME)
        return Attempts(pc.add(previous, pa.scalar(1, pa.int32())), first_failed)

    def rows_of(self, counts: Sequence[int]) -> Index:
        return self._raw.rows_of(counts)

    def ids(self) -> pa.Array:
        return pc.coalesce(self._envelope_field("id"), self._raw.ids())

    def milliseconds(self) -> UInt64s:
        digits = pc.replace_substring_regex(self.ids().cast(pa.string()), "-.*", "")
        milliseconds: UInt64s = digits.cast(pa.uint64()).to_numpy()
        return milliseconds

    def field(self, name: bytes) -> pa.Array:
        return last_values(self.fields(), name)

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        if self._first_fields is None:
            self._first_fields = self._outside_of_envelopes(self._marks())
        return self._first_fields

    def _marks(self) -> dict[int, bytes]:
        """Return the marks, by row, of entries that were redriven before they were tried here. They are rare, so this
        works row by row."""
        is_redriven = pc.invert(pc.is_in(self._envelope_field("redrives"), pa.array([b"", b"0", None], pa.binary())))
        marks: dict[int, bytes] = {}
        for row in np.flatnonzero(is_redriven.to_numpy(zero_copy_only=False)).tolist():
            row_fields = slice(int(self._offsets[row]), int(self._offsets[row + 1]))
            pairs = zip(self._names[row_fields].to_pylist(), self._values[row_fields].to_pylist(), strict=True)
            returned = ReturnedEntry.parse([word for pair in pairs for word in pair])
            fields = [] if returned is None else returned.fields
            if len(fields) > 2 * (self._ends[row] - self._offsets[row]):
                marks[row] = fields[-1]
        return marks

    def _outside_of_envelopes(self, marks: dict[int, bytes]) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return the fields outside of envelopes, with the mark behind those of each row that has one."""
        is_outside = np.ones(len(self._names), np.bool_)
        is_outside[(self._ends[self._has_envelope, None] + np.arange(_WIDTH)).ravel()] = False
        is_outside[: self._offsets[0]] = False
        is_outside[self._offsets[-1] :] = False
        positions = pa.array(np.flatnonzero(is_outside))
        names, values = self._names.take(positions), self._values.take(positions)
        width = self._ends - self._offsets[:-1]
        width[list(marks)] += 1
        ends = np.cumsum(width)
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        if not marks:
            return offsets, names, values
        is_mark = np.zeros(len(names) + len(marks), np.bool_)
        is_mark[ends[list(marks)] - 1] = True
        order = np.empty(len(is_mark), np.int64)
        order[~is_mark], order[is_mark] = np.arange(len(names)), len(names) + np.arange(len(marks))
        names = pa.concat_arrays([names, pa.array([MARK] * len(marks), pa.binary())])
        values = pa.concat_arrays([values, pa.array(list(marks.values()), pa.binary())])
        return offsets, names.take(pa.array(order)), values.take(pa.array(order))


def _are_plain(streams: pa.Array, ids: pa.Array) -> bool:
    """Whether each of these is certain to be the stream and the ID of an entry, without parsing each ID."""
    if not pc.all(pc.match_substring_regex(ids, _PLAIN_ID)).as_py():
        return not len(ids)
    return all(is_origin(stream, b"1-0") for stream in streams.unique().to_pylist())
