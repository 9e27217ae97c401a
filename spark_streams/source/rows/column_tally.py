"""Collect the column report of one task while it decodes pages (column_report). Pure: Arrow in, values out.

Decoding provides all of it: masks of values that do not fit, and counts of nulls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.model.printable import printable
from spark_streams.source.rows.column_report import MAX_NAMES, BadValues, ColumnReport
from spark_streams.source.rows.columns import Columns, Decoded
from spark_streams.source.rows.malformed import Unfit, in_sql
from spark_streams.wire.entries.decode import EntryPage

_LONGEST_NAME = 80  # bytes of a field's name that are reported
# Called once, with the report and whether the task has read all its entries: Spark may end it before.
ReportColumns = Callable[[ColumnReport, bool], None]


class ColumnTally:
    """Collects the column report of one task."""

    def __init__(self, columns: Columns) -> None:
        self._handling = columns.handling
        self._entries = 0
        self._bad: dict[str, BadValues] = {}
        self._absent = dict.fromkeys(columns.of_fields)
        self._last: EntryPage | None = None  # only if a column has no field yet

    def add(self, page: EntryPage, rows: int, streams: str | pa.Array, decoded: Decoded) -> None:
        """Add one page. rows, streams: as for Columns.batch."""
        self._entries += rows
        for column in decoded.unfit:
            values, name = _bad_values(page, streams, column), column.field.name
            self._bad[name] = self._bad[name] + values if name in self._bad else values
        if self._absent:
            self._absent = {name: None for name in self._absent if name in decoded.absent}
            self._last = page if self._absent else None

    @contextlib.contextmanager
    def reporting(self, callback: ReportColumns) -> Iterator[None]:
        """Call `callback` when the block ends, also if Spark ends the task early, unless the report is empty."""
        try:
            yield
        except GeneratorExit:
            self._report(callback, is_complete=False)
            raise
        self._report(callback, is_complete=True)

    def _report(self, callback: ReportColumns, is_complete: bool) -> None:
        absent = tuple(self._absent) if self._entries else ()
        report = ColumnReport(self._handling, self._entries, self._bad, absent, _names(self._last) if absent else ())
        if report:
            callback(report, is_complete)


def _bad_values(page: EntryPage, streams: str | pa.Array, column: Unfit) -> BadValues:
    first = pc.index(column.bad, True).as_py()
    counts = _per_stream(streams, column.bad)
    stream = streams if isinstance(streams, str) else streams[first].as_py()
    return BadValues(in_sql(column.field.type), counts, stream, page.ids()[first].as_py().decode(), column.shown(first))


def _per_stream(streams: str | pa.Array, bad: pa.Array) -> Mapping[str, int]:
    if isinstance(streams, str):
        return {streams: bad.true_count}
    counts = streams.slice(0, len(bad)).filter(bad).value_counts()
    return {pair["values"]: pair["counts"] for pair in counts.to_pylist()}


def _names(page: EntryPage | None) -> tuple[str, ...]:
    """Return the names of the fields of a page's entries, in their order."""
    if page is None:
        return ()
    names = pc.binary_slice(pc.unique(page.fields()[1]).slice(0, MAX_NAMES), 0, _LONGEST_NAME)
    texts = [name.decode("utf-8", "replace") for name in names.to_pylist()]
    return tuple(map(printable, texts))
