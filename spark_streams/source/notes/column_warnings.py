"""Warnings about declared columns, each said once: values that do not fit, columns that no entry has a field for."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence

from spark_streams.model.printable import printable
from spark_streams.source.rows.column_report import BadValues, ColumnReport

READ_MODES = ("PERMISSIVE", "FAILFAST", "DROPMALFORMED")  # of spark.read
STREAM_MODES = (*READ_MODES, "DEADLETTER")
_MOST_SHOWN = 10  # names of fields
_log = logging.getLogger("spark_streams.source")


class ColumnWarnings:
    """Of one run of a query, or of one batch read. modes: those of reading that there are; tries_again: whether entries
    are tried again before they are dead letters."""

    def __init__(self, modes: Sequence[str], tries_again: bool = False) -> None:
        self._modes = modes
        self._tries_again = tries_again
        self._said: set[str] = set()

    def say(self, report: ColumnReport, entries: int, whose: str) -> None:
        """Log what was not yet said about a column. entries: how many there were; whose: these are `of this batch`."""
        for column, values in report.bad.items():
            self._warn(column, self._unfit(column, values, report.mode, entries, whose))
        for column in report.absent:
            self._warn(column, _absent(column, report, whose))

    def _warn(self, column: str, text: str) -> None:
        if column not in self._said:
            self._said.add(column)
            _log.warning("%s", printable(text))

    def _unfit(self, column: str, values: BadValues, mode: str, entries: int, whose: str) -> str:
        others = [other for other in self._modes if other not in (mode, "DROPMALFORMED")]  # none that drops entries
        one = values.count == 1
        dead = "becomes a dead letter" if one else "become dead letters"
        if self._tries_again:
            dead = f"is tried again before it {dead}" if one else f"are tried again before they {dead}"
        become = {
            "PERMISSIVE": ", which is null instead",
            "DROPMALFORMED": f", and {'is' if one else 'are'} left out",
            "DEADLETTER": f", and {dead}",
        }[mode]
        more = f" and {len(values.counts) - 1} more" if len(values.counts) > 1 else ""
        return (
            f"stream {values.stream!r}{more}, column {column!r}: {values.count:,} of {entries:,} entries {whose} "
            f"{'has' if one else 'have'} a value that does not fit {values.type}{become} (mode {mode}); "
            f"the first is {values.value} in entry {values.entry}; declare it STRING, or choose mode "
            f"{' or '.join(others)}"
        )


def _absent(column: str, report: ColumnReport, whose: str) -> str:
    lower = {name.lower(): name for name in reversed(report.names)}
    near = difflib.get_close_matches(column.lower(), lower, n=1)
    they = f"did you mean {lower[near[0]]!r}? They" if near else "they"
    more = f" and {len(report.names) - _MOST_SHOWN} more" if len(report.names) > _MOST_SHOWN else ""
    return (
        f"column {column!r} is null: none of {report.entries:,} entries {whose} has a field of that name; {they} "
        f"have: {', '.join(report.names[:_MOST_SHOWN])}{more}"
    )
