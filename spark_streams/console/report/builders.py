"""Build reports from lines of the listener's log. Pure.

The memory grows with the number of groups, not with the time of the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_streams.console.report.report import (
    Chart,
    GroupRow,
    QueryRow,
    Report,
    charts_of,
)
from spark_streams.console.report.series import Series
from spark_streams.model import times
from spark_streams.model.counters import Counts
from spark_streams.model.untyped import Json
from spark_streams.monitor.lag_survey import GroupLag
from spark_streams.monitor.rates import Key, Rates


class LagSeries:
    """The lags of groups over time, and their ages."""

    def __init__(self) -> None:
        self._lags, self._ages = Series(), Series()

    def add(self, at_ms: int, key: Key, lag: int | None, lag_ms: int | None) -> None:
        """Add a point of a group's lines."""
        name = f"{key[1]} of {key[0]}"
        self._lags.add(name, at_ms, lag)
        self._ages.add(name, at_ms, lag_ms)

    def gap(self, at_ms: int, unbroken: Iterable[Key]) -> None:
        """Add a gap to the lines of all other groups."""
        names = {f"{group} of {stream}" for stream, group in unbroken}
        self._lags.gap(at_ms, names)
        self._ages.gap(at_ms, names)

    def charts(self) -> list[Chart]:
        """Return a chart of the lags, and one of their ages."""
        return charts_of(
            ("Lag", "entries", self._lags), ("Behind: age of the oldest entry not acknowledged", "ms", self._ages)
        )


class ThroughputSeries:
    """The throughput of all groups together over time."""

    def __init__(self) -> None:
        self._speeds = Series()

    def add(self, at_ms: int, rates: Rates) -> None:
        """Add a point of each line. rates: of all groups together."""
        for name, value in (
            ("added", rates.added),
            ("delivered", rates.delivered),
            ("acknowledged", rates.acknowledged),
        ):
            self._speeds.add(name, at_ms, value)

    def charts(self) -> list[Chart]:
        """Return the chart."""
        return charts_of(("Throughput of all groups together", "per second", self._speeds), one_scale=True)


def group_row(group: GroupLag) -> GroupRow:
    """Return the row of a group."""
    return GroupRow(
        group.stream,
        group.group,
        group.lag,
        group.at_least,
        group.lag_ms,
        group.pending,
        group.oldest_idle_ms,
        group.last_delivered,
        group.is_active,
    )


class LogReading:
    """A report that is built from lines of the listener's log (monitor.watch.log_lines)."""

    def __init__(self, streams: Iterable[str] = (), group: str | None = None) -> None:
        self._streams, self._group = set(streams), group
        self._began = self._ended = 0
        self._groups, self._speeds, self._took = LagSeries(), Series(), Series()
        self._rows: dict[Key, GroupRow] = {}
        self._queries: dict[str, QueryRow] = {}
        self._counts: dict[str, dict[tuple[str, Key], Counts]] = {}

    def add(self, line: Mapping[str, Json]) -> None:
        """Add a line."""
        at_ms = times.moment(line["at"])
        self._began, self._ended = min(self._began or at_ms, at_ms), max(self._ended, at_ms)
        name = line["query"]
        query = self._queries.setdefault(name, QueryRow(name))
        if line["event"] == "terminated" and "error" in line:
            query.failures.append((line["at"], line["error"], line["message"]))
        for group in line.get("groups", ()):
            if (not self._streams or group["stream"] in self._streams) and self._group in (None, group["group"]):
                self._add_group(at_ms, name, line["run"], group)
        if line["event"] == "progress":
            query.batches += 1
            query.rows += line["rows"]
            query.longest_ms = max(query.longest_ms, line["batch_ms"])
            self._speeds.add(name, at_ms, line["rows_per_second"])
            self._took.add(name, at_ms, line["batch_ms"])

    def _add_group(self, at_ms: int, query: str, run: str, group: Mapping[str, Json]) -> None:
        key = group["stream"], group["group"]
        self._groups.add(at_ms, key, group["lag"], group["lag_ms"])
        self._rows[key] = GroupRow(
            *key,
            group["lag"],
            group.get("lag_at_least", False),
            group["lag_ms"],
            group["pending"],
            group["oldest_idle_ms"],
            group["position"],
        )
        # A line has the counts of its run so far: the last line has those of the whole run.
        self._counts.setdefault(query, {})[run, key] = Counts.read(group)

    def report(self, name: str) -> Report:
        """Return the report of all lines so far; there must be one. name: of the log."""
        for query, counts in self._counts.items():
            self._queries[query].counts = sum(counts.values(), Counts())
        charts = [
            *self._groups.charts(),
            *charts_of(
                ("Rows per second, batch by batch", "per second", self._speeds), ("Batch time", "ms", self._took)
            ),
        ]
        groups = [self._rows[key] for key in sorted(self._rows)]
        return Report(
            f"Queries in {name}",
            self._began,
            self._ended,
            tuple(charts),
            tuple(groups),
            len({group.stream for group in groups}),
            queries=tuple(self._queries[name] for name in sorted(self._queries)),
        )
