"""Reports from looks at a server, or from the lines of the listener's log. Pure: looks and lines in, a report out.

What is kept does not grow with the time that is looked at, only with the number of groups.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from spark_streams.model.untyped import Json
from spark_streams.monitor.lag_survey import GroupStanding, Survey
from spark_streams.monitor.rates import Key, rates_between
from spark_streams.monitor.report.report import (
    Chart,
    ConsumerRow,
    GroupRow,
    LetterRow,
    QueryRow,
    Report,
    charts_of,
)
from spark_streams.monitor.report.series import Series


class _Groups:
    """How the lags of groups went."""

    def __init__(self) -> None:
        self._lags, self._ages = Series(), Series()

    def add(self, at: int, key: Key, lag: int | None, lag_ms: int | None) -> None:
        name = f"{key[1]} of {key[0]}"
        self._lags.add(name, at, lag)
        self._ages.add(name, at, lag_ms)

    def gap(self, at: int, but: Iterable[Key]) -> None:
        names = {f"{group} of {stream}" for stream, group in but}
        self._lags.gap(at, names)
        self._ages.gap(at, names)

    def charts(self) -> list[Chart]:
        return charts_of(
            ("Lag", "entries", self._lags), ("Behind: age of the oldest entry not acknowledged", "ms", self._ages)
        )


class ServerReading:
    """Looks at a server, one after the other."""

    def __init__(self) -> None:
        self._groups, self._speeds = _Groups(), Series()
        self._first: int | None = None
        self._last: Survey | None = None

    def add(self, seen: Survey) -> None:
        """One more look."""
        keys = [(one.stream, one.group) for one in seen.groups]
        for key, one in zip(keys, seen.groups, strict=True):
            self._groups.add(seen.at_ms, key, one.lag, one.lag_ms)
        self._groups.gap(seen.at_ms, keys)
        if self._last is None:
            self._first = seen.at_ms
        elif seen.at_ms > self._last.at_ms:
            rates = rates_between(self._last, seen)
            added = {stream: one.added for (stream, _), one in rates.items()}
            for name, values in (
                ("added", list(added.values())),
                ("delivered", [one.delivered for one in rates.values()]),
                ("acknowledged", [one.acknowledged for one in rates.values()]),
            ):
                known = [value for value in values if value is not None]
                self._speeds.add(name, seen.at_ms, sum(known) if known else None)
        self._last = seen

    def report(self, where: str, letters: Iterable[LetterRow]) -> Report:
        """Of all looks so far; there must be one. With only one there is nothing to draw over time."""
        last, first = self._last, self._first
        assert last is not None
        assert first is not None
        charts = [
            *self._groups.charts(),
            *charts_of(("Throughput of all groups together", "per second", self._speeds), one_scale=True),
        ]
        return Report(
            f"Streams at {where}",
            first,
            last.at_ms,
            tuple(charts) if last.at_ms > first else (),
            tuple(_row(one) for one in last.groups),
            len(last.streams),
            tuple(
                ConsumerRow(one.stream, one.group, each.consumer, each.pending, each.oldest_idle_ms, each.idle_ms)
                for one in last.groups
                for each in one.consumers
            ),
            tuple(sorted(letters, key=lambda one: -one.letters)),
        )


def _row(one: GroupStanding) -> GroupRow:
    return GroupRow(
        one.stream,
        one.group,
        one.lag,
        one.at_least,
        one.lag_ms,
        one.pending,
        one.oldest_idle_ms,
        one.last_delivered,
        one.is_active,
    )


class LogReading:
    """Lines of the listener's log (monitor.watch.log_lines), one after the other."""

    def __init__(self, streams: Iterable[str] = (), group: str | None = None) -> None:
        self._streams, self._group = set(streams), group
        self._began = self._ended = 0
        self._groups, self._speeds, self._took = _Groups(), Series(), Series()
        self._rows: dict[Key, GroupRow] = {}
        self._queries: dict[str, QueryRow] = {}
        self._counts: dict[str, dict[tuple[str, Key], tuple[int, int, int, int]]] = {}

    def add(self, line: Mapping[str, Json]) -> None:
        """One line."""
        at = round(datetime.datetime.fromisoformat(line["at"]).timestamp() * 1000)
        self._began, self._ended = min(self._began or at, at), max(self._ended, at)
        name = line["query"]
        query = self._queries.setdefault(name, QueryRow(name))
        if line["event"] == "terminated" and "error" in line:
            query.failures.append((line["at"], line["error"], line["message"]))
        for one in line.get("groups", ()):
            if (not self._streams or one["stream"] in self._streams) and self._group in (None, one["group"]):
                self._add_group(at, name, line["run"], one)
        if line["event"] == "progress":
            query.batches += 1
            query.rows += line["rows"]
            query.longest_ms = max(query.longest_ms, line["batch_ms"])
            self._speeds.add(name, at, line["rows_per_second"])
            self._took.add(name, at, line["batch_ms"])

    def _add_group(self, at: int, query: str, run: str, one: Mapping[str, Json]) -> None:
        key = one["stream"], one["group"]
        self._groups.add(at, key, one["lag"], one["lag_ms"])
        self._rows[key] = GroupRow(
            *key,
            one["lag"],
            one.get("lag_at_least", False),
            one["lag_ms"],
            one["pending"],
            one["oldest_idle_ms"],
            one["position"],
        )
        # Counts are those of a run so far: its last ones are the run's.
        self._counts.setdefault(query, {})[run, key] = (
            one["lost"], one["claimed"], one["dead"], sum(one.get("bad", {}).values()),
        )  # fmt: skip

    def report(self, name: str) -> Report:
        """Of all lines so far, of the log that is called so; there must be one."""
        for query, counts in self._counts.items():
            row = self._queries[query]
            row.lost, row.claimed, row.dead, row.bad = (sum(one[at] for one in counts.values()) for at in range(4))
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
            len({one.stream for one in groups}),
            queries=tuple(self._queries[one] for one in sorted(self._queries)),
        )
