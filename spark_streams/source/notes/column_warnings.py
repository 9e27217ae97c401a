"""Warnings about declared columns, one each: values that do not fit, and columns that no entry has a field for."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence

from spark_streams.model.printable import printable
from spark_streams.source.rows.column_report import BadValues, ColumnReport
from spark_streams.source.rows.columns import UNFIT

READ_MODES = ("PERMISSIVE", "FAILFAST", "DROPMALFORMED")  # of spark.read
STREAM_MODES = (*READ_MODES, "DEADLETTER")
_MAX_NAMES = 10  # names of fields in a warning
_log = logging.getLogger("spark_streams.source")


class ColumnWarnings:
    """Warnings of one run of a query, or of one batch read. modes: all values of option `mode`; has_retries: entries
    are retried before they become dead letters."""

    def __init__(self, modes: Sequence[str], has_retries: bool = False) -> None:
        self._modes = modes
        self._has_retries = has_retries
        self._warned: set[str] = set()

    def warn(self, report: ColumnReport, entries: int, scope: str) -> None:
        """Log a warning for each column that has had none. entries: number of entries in `scope`, such as `of this
        batch`."""
        for column, values in report.bad.items():
            self._warn(column, self._unfit(column, values, report.handling, entries, scope))
        for column in report.absent:
            self._warn(column, _absent(column, report, scope))

    def _warn(self, column: str, text: str) -> None:
        if column not in self._warned:
            self._warned.add(column)
            _log.warning("%s", printable(text))

    def _unfit(self, column: str, values: BadValues, handling: str, entries: int, scope: str) -> str:
        other_modes = [other for other in self._modes if other not in (handling, "DROPMALFORMED")]  # none drops entries
        advice = f" Declare the column STRING, or set mode to {' or '.join(other_modes)}"
        is_single = values.count == 1
        dead = "becomes a dead letter" if is_single else "become dead letters"
        if self._has_retries:
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
            f"The first is {values.value} in entry {values.entry}.{advice}"
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
