"""Parts of a page that are selected from a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from spark_streams.console.report.rendering import MAX_ROWS
from spark_streams.console.report.report import Report
from spark_streams.model.counters import DEAD
from spark_streams.monitor.terminal.units import count, duration


class Tile(NamedTuple):
    """A number at the top of the page."""

    name: str
    value: str
    alarming: bool = False


class Failure(NamedTuple):
    """A run of a query that ended with an error."""

    time: str
    error: str
    message: str
    query: str


def failures_of(report: Report) -> list[Failure]:
    """Return the last failed runs of all queries."""
    failures = sorted(Failure(*failure, query.name) for query in report.queries or () for failure in query.failures)
    return failures[-MAX_ROWS:]


def tiles(report: Report) -> Iterator[Tile]:
    """Return the numbers at the top of the page."""
    lags = [group.lag for group in report.groups if group.lag is not None]
    pending = [group.pending for group in report.groups if group.pending is not None]
    behind = [group for group in report.groups if group.lag or group.pending]
    slowest = max(behind, key=lambda group: (group.is_active, group.lag_ms or 0, group.lag or 0), default=None)
    of_streams = "" if report.streams is None else f" of {report.streams:,} {_plural('stream', report.streams)}"
    yield Tile(_plural("group", len(report.groups)) + of_streams, f"{len(report.groups):,}")
    at_least = any(group.at_least for group in report.groups)
    yield Tile("entries of lag", count(sum(lags), at_least) if lags or not report.groups else "?")
    yield Tile("entries pending", f"{sum(pending):,}" if pending or not report.groups else "?")
    if slowest is not None:
        yield Tile(f"behind: {slowest.group} of {slowest.stream}", duration(slowest.lag_ms))
    if report.dead_letters is not None:
        dead_letters = sum(row.count for row in report.dead_letters)
        yield Tile(_plural("dead letter", dead_letters), f"{dead_letters:,}", dead_letters > 0)
    if report.queries is not None:
        failures = sum(len(query.failures) for query in report.queries)
        dead = sum(query.counts[DEAD] for query in report.queries)
        yield Tile(_plural("dead letter", dead), f"{dead:,}", dead > 0)
        yield Tile(_plural("failed run", failures), f"{failures:,}", failures > 0)


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else noun + "s"
