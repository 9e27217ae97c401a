"""Report on declared columns: values that do not fit, and columns that no entry has a field for. Pure."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import StreamId
from spark_streams.base.printable import printable
from spark_streams.base.untyped import Json
from spark_streams.connector.source.rows.columns import UNFIT, Attempts, Columns, Decoded, Unfit, in_sql
from spark_streams.connector.wire.entry_page import EntryPage

MAX_NAMES = 100  # names of fields in a report


@dataclass(frozen=True)
class BadValues:
    type: str  # the declared SQL type
    counts: Mapping[str, int]  # number of values per stream
    stream: str  # of the first value
    entry: str  # ID of the first entry
    value: str  # form of the first value, a Python repr

    def __add__(self, other: BadValues) -> BadValues:
        first = min(self, other, key=lambda values: (StreamId.parse(values.entry), values.stream))
        return replace(first, counts=Counter(self.counts) + Counter(other.counts))

    @property
    def count(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class ColumnReport:
    """Report of one task, or of all tasks of a batch. False if it is empty."""

    # What happens to values that do not fit: the value of option `mode`, or the metadata column that names them.
    handling: str
    entries: int  # number of entries
    bad: Mapping[str, BadValues] = field(default_factory=dict)  # per column
    absent: tuple[str, ...] = ()  # columns that none of these entries has a field for
    names: tuple[str, ...] = ()  # printable names of the fields of the last entries
    tasks: int = 1  # number of the batch's tasks

    def __bool__(self) -> bool:
        return bool(self.bad or self.absent)

    @classmethod
    def of_batch(cls, reports: Sequence[Self]) -> Self:
        """Merge the reports of a batch's tasks. Tasks with an empty report send none, so a column is only absent if all
        tasks report it as absent."""
        bad: dict[str, BadValues] = {}
        for column, values in itertools.chain.from_iterable(report.bad.items() for report in reports):
            bad[column] = bad[column] + values if column in bad else values
        tasks = max((report.tasks for report in reports), default=0)
        absent_in = Counter(column for report in reports for column in report.absent)
        absent = tuple(column for column, count in absent_in.items() if count == tasks)
        names = tuple(dict.fromkeys(name for report in reports for name in report.names))[:MAX_NAMES]
        handling = next((report.handling for report in reports), "")
        return cls(handling, sum(report.entries for report in reports), bad, absent, names, tasks)

    def to_json(self) -> str:
        bad = {
            column: {
                "type": values.type,
                "counts": dict(values.counts),
                "first": [values.stream, values.entry, values.value],
            }
            for column, values in self.bad.items()
        }
        return json.dumps({**vars(self), "bad": bad}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        report: dict[str, Json] = json.loads(text)
        bad = {
            column: BadValues(values["type"], values["counts"], *values["first"])
            for column, values in report["bad"].items()
        }
        absent, names = tuple(report["absent"]), tuple(report["names"])
        return cls(report["handling"], report["entries"], bad, absent, names, report["tasks"])


# -- column tally ------------------------------------------------------------------------------------------------------


_LONGEST_NAME = 80  # bytes of a field's name that are reported
# Called once, with the report and whether the task has read all its entries: Spark may end it before.
ReportColumns = Callable[[ColumnReport, bool], None]


class ColumnTally:
    """Collects the column report of one task while it decodes pages."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._entries = 0
        self._bad: dict[str, BadValues] = {}
        self._absent = dict.fromkeys(columns.of_fields)
        self._last: EntryPage | None = None  # only if a column has no field yet

    def batch(
        self,
        page: EntryPage,
        streams: str | pa.Array,
        deliveries: pa.Array | None = None,
        attempts: Attempts | None = None,
    ) -> Decoded:
        """Decode a page as Columns.batch does, and add it."""
        decoded = self._columns.batch(page, streams, deliveries, attempts)
        self._entries += page.count
        for column in decoded.unfit:
            values, name = _bad_values(page, streams, column), column.field.name
            self._bad[name] = self._bad[name] + values if name in self._bad else values
        if self._absent:
            self._absent = {name: None for name in self._absent if name in decoded.absent}
            self._last = page if self._absent else None
        return decoded

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
        report = ColumnReport(
            self._columns.handling, self._entries, self._bad, absent, _names(self._last) if absent else ()
        )
        if report:
            callback(report, is_complete)


def _bad_values(page: EntryPage, streams: str | pa.Array, column: Unfit) -> BadValues:
    first = pc.index(column.bad, True).as_py()
    counts = _per_stream(streams, column.bad)
    stream = streams if isinstance(streams, str) else streams[first].as_py()
    return BadValues(in_sql(column.field.type), counts, stream, page.ids()[first].as_py().decode(), column.form(first))


def _per_stream(streams: str | pa.Array, bad: pa.Array) -> Mapping[str, int]:
    if isinstance(streams, str):
        return {streams: bad.true_count}
    counts = streams.filter(bad).value_counts()
    return {pair["values"]: pair["counts"] for pair in counts.to_pylist()}


def _names(page: EntryPage | None) -> tuple[str, ...]:
    """Return the names of the fields of a page's entries, in their order."""
    if page is None:
        return ()
    names = pc.binary_slice(pc.unique(page.fields()[1]).slice(0, MAX_NAMES), 0, _LONGEST_NAME)
    texts = [name.decode("utf-8", "replace") for name in names.to_pylist()]
    return tuple(map(printable, texts))


# -- column warnings ---------------------------------------------------------------------------------------------------


READ_MODES = ("PERMISSIVE", "FAILFAST", "DROPMALFORMED")  # of spark.read
STREAM_MODES = (*READ_MODES, "DEADLETTER")
_MAX_NAMES = 10  # names of fields in a warning
_log = logging.getLogger("spark_streams.source")


@dataclass(frozen=True)
class ColumnWarnings:
    """Warnings of one run of a query, or of one batch read, one for each column."""

    modes: Sequence[str]  # all values of option `mode`
    has_retries: bool = False  # entries are retried before they become dead letters
    warned: set[str] = field(default_factory=set)  # columns

    def warn(self, report: ColumnReport, entries: int, scope: str) -> None:
        """Log a warning for each column that has had none. entries: number of entries in `scope`, such as `of this
        batch`."""
        for column, values in report.bad.items():
            self._warn(column, self._unfit(column, values, report.handling, entries, scope))
        for column in report.absent:
            self._warn(column, _absent(column, report, scope))

    def _warn(self, column: str, text: str) -> None:
        if column not in self.warned:
            self.warned.add(column)
            _log.warning("%s", printable(text))

    def _unfit(self, column: str, values: BadValues, handling: str, entries: int, scope: str) -> str:
        other_modes = [other for other in self.modes if other not in (handling, "DROPMALFORMED")]  # none drops entries
        advice = f" Declare the column STRING, or set mode to {' or '.join(other_modes)}"
        is_single = values.count == 1
        dead = "becomes a dead letter" if is_single else "become dead letters"
        if self.has_retries:
            dead = f"is retried before it {dead}" if is_single else f"are retried before they {dead}"
        consequence, advice = {
            "PERMISSIVE": (", which is null instead (mode PERMISSIVE)", advice),
            "DROPMALFORMED": (f", and {'is' if is_single else 'are'} left out (mode DROPMALFORMED)", advice),
            "DEADLETTER": (f", and {dead} (mode DEADLETTER)", advice),
            UNFIT: (f"; the query has the column {UNFIT} to judge {'it' if is_single else 'them'}", ""),
        }[handling]
        more_streams = f" and {len(values.counts) - 1} more" if len(values.counts) > 1 else ""
        return (
            f"stream {values.stream!r}{more_streams}, column {column!r}: {values.count:,} of {entries:,} entries "
            f"{scope} {'has' if is_single else 'have'} a value that does not fit {values.type}{consequence}. "
            f"The first has the form {values.value} (x: a letter, 9: a digit) in entry {values.entry}.{advice}"
        )


def _absent(column: str, report: ColumnReport, scope: str) -> str:
    names = {name.lower(): name for name in reversed(report.names)}
    similar = difflib.get_close_matches(column.lower(), names, n=1)
    question = f"Did you mean {names[similar[0]]!r}? " if similar else ""
    more_names = f" and {len(report.names) - _MAX_NAMES} more" if len(report.names) > _MAX_NAMES else ""
    return (
        f"column {column!r} is null: none of {report.entries:,} entries {scope} has a field of that name. {question}"
        f"They have: {', '.join(report.names[:_MAX_NAMES])}{more_names}"
    )
