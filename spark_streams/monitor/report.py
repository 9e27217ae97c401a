"""What a report says, from looks at a server or from the listener's log. Pure: looks, lines in, charts, tables out.

monitor.plots draws the charts, monitor.page makes the page.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_streams.monitor.history import History, Key, rates_between

Points = list[tuple[int, float | None]]

LINES = 6  # of a chart; the smaller ones beyond are left out, and that is said


@dataclass(frozen=True)
class Line:
    """One line of a chart. points: (milliseconds since the epoch, value), None where it is broken; colour: 0 … LINES−1,
    the same for the same name in all charts."""

    name: str
    points: tuple[tuple[int, float | None], ...]
    colour: int = 0

    @property
    def peak(self) -> float:
        """The largest value."""
        return max((value for _, value in self.points if value is not None), default=0.0)


@dataclass(frozen=True)
class Chart:
    """unit: `entries`, `per second` or `ms`. left_out: lines that there was no room for."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    left_out: int = 0


@dataclass(frozen=True)
class GroupRow:
    """One group at the end of the report; None: not known."""

    stream: str
    group: str
    lag: int | None
    at_least: bool
    lag_ms: int | None
    pending: int | None
    oldest_idle_ms: int | None
    position: str


@dataclass(frozen=True)
class ConsumerRow:
    """One consumer at the end of the report."""

    stream: str
    group: str
    consumer: str
    pending: int
    oldest_idle_ms: int | None
    idle_ms: int


@dataclass(frozen=True)
class LetterRow:
    """So many dead letters of one kind in one dead-letter stream."""

    stream: str
    stage: str
    reason: str
    error: str
    letters: int


@dataclass
class QueryRow:
    """One query over the time of the report."""

    name: str
    batches: int = 0
    rows: int = 0
    longest_ms: int = 0
    lost: int = 0
    claimed: int = 0
    dead: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)  # when, error, message


@dataclass(frozen=True)
class Report:
    """title: what it is about; began, ended: milliseconds since the epoch. What was not asked for is None."""

    title: str
    began: int
    ended: int
    charts: tuple[Chart, ...]
    groups: tuple[GroupRow, ...]
    streams: int | None = None
    consumers: tuple[ConsumerRow, ...] | None = None
    letters: tuple[LetterRow, ...] | None = None
    queries: tuple[QueryRow, ...] | None = None


def of_history(history: History, where: str, letters: Iterable[LetterRow]) -> Report:
    """From looks at a server; with one look there is nothing to draw over time."""
    looks, last = history.looks, history.last
    keys = sorted({(one.stream, one.group) for look in looks for one in look.groups})
    lags: dict[Key, Points] = {key: [] for key in keys}
    ages: dict[Key, Points] = {key: [] for key in keys}
    speeds: dict[str, Points] = {name: [] for name in ("added", "delivered", "acknowledged")}
    for before, look in zip([None, *looks], looks, strict=False):
        there = {(one.stream, one.group): one for one in look.groups}
        for key in keys:
            one = there.get(key)
            lags[key].append((look.at_ms, None if one is None else one.lag))
            ages[key].append((look.at_ms, None if one is None else one.lag_ms))
        if before is not None:
            rates = rates_between(before, look)
            by_stream = {stream: one.added for (stream, _), one in rates.items()}
            for name, values in (
                ("added", by_stream.values()),
                ("delivered", [one.delivered for one in rates.values()]),
                ("acknowledged", [one.acknowledged for one in rates.values()]),
            ):
                known = [value for value in values if value is not None]
                speeds[name].append((look.at_ms, sum(known) if known else None))
    charts = [*_of_groups(lags, ages), *_charts(("Throughput of all groups together", "per second", speeds))]
    return Report(
        f"Streams at {where}",
        looks[0].at_ms,
        last.at_ms,
        tuple(charts) if len(looks) > 1 else (),
        tuple(
            GroupRow(
                one.stream, one.group, one.lag, one.at_least, one.lag_ms, one.pending, one.oldest_idle_ms,
                one.last_delivered,
            )
            for one in last.groups
        ),
        len(last.streams),
        tuple(
            ConsumerRow(one.stream, one.group, each.consumer, each.pending, each.oldest_idle_ms, each.idle_ms)
            for one in last.groups
            for each in one.consumers
        ),
        tuple(sorted(letters, key=lambda one: -one.letters)),
    )  # fmt: skip


class LogReading:
    """Lines of the listener's log (monitor.lines), one after the other."""

    def __init__(self, streams: Iterable[str] = (), group: str | None = None) -> None:
        self._streams, self._group = set(streams), group
        self._times: list[int] = []
        self._lags: dict[Key, Points] = {}
        self._ages: dict[Key, Points] = {}
        self._groups: dict[Key, GroupRow] = {}
        self._speeds: dict[str, Points] = {}
        self._took: dict[str, Points] = {}
        self._queries: dict[str, QueryRow] = {}
        self._counts: dict[str, dict[tuple[str, Key], tuple[int, int, int]]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """One line."""
        at = _milliseconds(line["at"])
        self._times.append(at)
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
            self._speeds.setdefault(name, []).append((at, line["rows_per_second"]))
            self._took.setdefault(name, []).append((at, line["batch_ms"]))

    def _add_group(self, at: int, query: str, run: str, one: Mapping[str, Any]) -> None:
        key = one["stream"], one["group"]
        self._lags.setdefault(key, []).append((at, one["lag"]))
        self._ages.setdefault(key, []).append((at, one["lag_ms"]))
        self._groups[key] = GroupRow(
            *key, one["lag"], one.get("lag_at_least", False), one["lag_ms"], one["pending"], one["oldest_idle_ms"],
            one["position"],
        )  # fmt: skip
        # Counts are those of a run so far: its last ones are the run's.
        self._counts.setdefault(query, {})[run, key] = one["lost"], one["claimed"], one["dead"]

    def report(self, name: str) -> Report:
        """Of all lines so far, of the log that is called so; there must be one."""
        for query_name, counts in self._counts.items():
            query = self._queries[query_name]
            query.lost, query.claimed, query.dead = (sum(one[at] for one in counts.values()) for at in range(3))
        charts = (
            *_of_groups(self._lags, self._ages),
            *_charts(("Rows per second, batch by batch", "per second", self._speeds), ("Batch time", "ms", self._took)),
        )
        groups = [self._groups[key] for key in sorted(self._groups)]
        queries = [self._queries[one] for one in sorted(self._queries)]
        return Report(
            f"Queries in {name}",
            min(self._times),
            max(self._times),
            charts,
            tuple(groups),
            len({one.stream for one in groups}),
            queries=tuple(queries),
        )


def _of_groups(lags: Mapping[Key, Points], ages: Mapping[Key, Points]) -> list[Chart]:
    return _charts(
        ("Lag", "entries", {_name(key): points for key, points in lags.items()}),
        ("Behind: age of the oldest entry not acknowledged", "ms", {_name(k): points for k, points in ages.items()}),
    )


def _charts(*drawn: tuple[str, str, Mapping[str, Points]]) -> list[Chart]:
    """Charts of the same names: those that are drawn, and their colours, are the same in all."""
    tables = [
        {name: Line(name, tuple(sorted(points, key=lambda point: point[0]))) for name, points in series.items()}
        for _, _, series in drawn
    ]
    # In turns the highest of each chart, so that the top of none is left out.
    ranks = [sorted(table, key=lambda name: -table[name].peak) for table in tables]
    names = list(dict.fromkeys(name for turn in zip(*ranks, strict=True) for name in turn))
    chosen = {name: colour for colour, name in enumerate(names[:LINES])}
    charts = []
    for (title, unit, _), table, rank in zip(drawn, tables, ranks, strict=True):
        lines = [Line(name, table[name].points, chosen[name]) for name in rank if name in chosen]
        charts.append(Chart(title, unit, tuple(lines), len(names) - len(chosen)))
    return charts


def _name(key: Key) -> str:
    return f"{key[1]} of {key[0]}"


def _milliseconds(text: str) -> int:
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)
