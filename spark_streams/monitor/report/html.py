"""A report as one HTML page that needs nothing else: styles and charts are in it, no script, light and dark.

What the page shows is chosen here, how it looks is in templates/. Pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import NamedTuple

from spark_streams._version import __version__
from spark_streams.model.printable import printable_lines
from spark_streams.monitor.report.rendering import MOST_ROWS, render
from spark_streams.monitor.report.report import Report
from spark_streams.monitor.report.svg import draw
from spark_streams.monitor.terminal.units import count, duration


class Tile(NamedTuple):
    """A number at the top of the page."""

    name: str
    value: str
    alarming: bool = False


class Failure(NamedTuple):
    """A run of a query that ended with an error."""

    at: str
    error: str
    message: str
    query: str


def page(report: Report) -> str:
    """The whole page."""
    groups = sorted(
        report.groups, key=lambda one: (not one.is_active, -(one.lag_ms or 0), -(one.lag or 0), one.stream, one.group)
    )
    consumers = sorted(report.consumers or (), key=lambda one: (-one.pending, one.stream, one.group, one.consumer))
    failures = sorted(Failure(*failure, one.name) for one in report.queries or () for failure in one.failures)
    markup = render(
        "page.html",
        report=report,
        period=_period(report),
        tiles=list(_tiles(report)),
        draw=draw,
        groups=groups,
        most_lag=max((one.lag or 0 for one in groups), default=0),
        failures=failures[-MOST_ROWS:],
        consumers=consumers,
        most_letters=max((one.letters for one in report.letters or ()), default=0),
        version=__version__,
    )
    return printable_lines(str(markup))


def _period(report: Report) -> str:
    if report.ended == report.began:
        return f"as of {_moment(report.ended)}"
    return f"{_moment(report.began)} – {_moment(report.ended)} ({duration(report.ended - report.began)})"


def _moment(at: int) -> str:
    return datetime.datetime.fromtimestamp(at / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _tiles(report: Report) -> Iterator[Tile]:
    lags = [one.lag for one in report.groups if one.lag is not None]
    pending = [one.pending for one in report.groups if one.pending is not None]
    behind = [one for one in report.groups if one.lag or one.pending]
    slowest = max(behind, key=lambda one: (one.is_active, one.lag_ms or 0, one.lag or 0), default=None)
    of = "" if report.streams is None else f" of {report.streams:,} {_plural('stream', report.streams)}"
    yield Tile(_plural("group", len(report.groups)) + of, f"{len(report.groups):,}")
    at_least = any(one.at_least for one in report.groups)
    yield Tile("entries of lag", count(sum(lags), at_least) if lags else "?")
    yield Tile("entries pending", f"{sum(pending):,}" if pending else "?")
    if slowest is not None:
        yield Tile(f"{slowest.group} of {slowest.stream} is behind", duration(slowest.lag_ms))
    if report.letters is not None:
        letters = sum(one.letters for one in report.letters)
        yield Tile(_plural("dead letter", letters), f"{letters:,}", letters > 0)
    if report.queries is not None:
        failures = sum(len(one.failures) for one in report.queries)
        dead = sum(one.dead for one in report.queries)
        yield Tile(_plural("dead letter", dead), f"{dead:,}", dead > 0)
        yield Tile(_plural("failed run", failures), f"{failures:,}", failures > 0)


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else noun + "s"
