"""What a report says: charts and tables. Pure values; builders makes them, svg draws the charts,
monitor.report.html makes the page, rendering fills its templates.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spark_streams.monitor.report.series import Point, Series

LINES = 6  # lines of a chart, the highest; the legend says how many there are beyond


@dataclass(frozen=True)
class Line:
    """One line of a chart. points: (milliseconds since the epoch, value), None where it is broken; colour: 0 … LINES−1,
    the same for a name in the charts that are drawn together."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0

    @property
    def peak(self) -> float:
        """The largest value."""
        return max((value for _, value in self.points if value is not None), default=0.0)


@dataclass(frozen=True)
class Chart:
    """unit: `entries`, `per second` or `ms`. left_out: how many lines there are beyond LINES, none of them higher;
    one_scale: the lines share a scale whatever their sizes, because readers compare them."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    left_out: int = 0
    one_scale: bool = False


@dataclass(frozen=True)
class GroupRow:
    """One group at the end of the report; None: not known. is_active: somebody has read from it lately."""

    stream: str
    group: str
    lag: int | None
    at_least: bool
    lag_ms: int | None
    pending: int | None
    oldest_idle_ms: int | None
    position: str
    is_active: bool = True


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
    bad: int = 0  # values that did not fit their column
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


def charts_of(*drawn: tuple[str, str, Series], one_scale: bool = False) -> list[Chart]:
    """A chart for each (title, unit, lines): the highest of its own lines. A name that is in two charts has the same
    colour in both. one_scale: as in Chart."""
    charts = []
    colours: dict[str, int] = {}
    for title, unit, series in drawn:
        lines = sorted((Line(name, tuple(series[name])) for name in series), key=lambda line: -line.peak)
        names = [line.name for line in lines[:LINES]]
        free = sorted({*range(LINES)} - {colours[name] for name in names if name in colours})
        colours |= dict(zip(sorted(name for name in names if name not in colours), free, strict=False))
        shown = tuple(replace(line, colour=colours[line.name]) for line in lines[:LINES])
        charts.append(Chart(title, unit, shown, len(lines) - len(shown), one_scale))
    return charts
