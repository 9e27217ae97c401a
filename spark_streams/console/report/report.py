"""The content of a report: charts and tables, as pure values. builders creates them, svg draws the charts,
rendering fills the templates.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spark_streams.console.report.series import Point, Series
from spark_streams.model.counters import Counts

LINES = 6  # of a chart, the highest ones; the legend names the number of the others


@dataclass(frozen=True)
class Line:
    """One line of a chart. points: (milliseconds since the epoch, value), None for a gap; colour: 0 … LINES−1, the same
    for a name in all charts that are drawn together."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0

    @property
    def peak(self) -> float:
        """The largest value."""
        return max((value for _, value in self.points if value is not None), default=0.0)


@dataclass(frozen=True)
class Chart:
    """A chart. unit: `entries`, `per second` or `ms`; left_out: number of lines beyond LINES, none of them higher;
    one_scale: all lines share a scale, because readers compare them."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    left_out: int = 0
    one_scale: bool = False


@dataclass(frozen=True)
class GroupRow:
    """One group at the end of the report; None: not known. is_active: a consumer sent a request in the last day."""

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
class DeadLetterRow:
    """The number of dead letters of one kind in one dead-letter stream."""

    stream: str
    stage: str
    reason: str
    error: str
    count: int


@dataclass
class QueryRow:
    """One query over the time of the report."""

    name: str
    batches: int = 0
    rows: int = 0
    longest_ms: int = 0
    counts: Counts = field(default_factory=Counts)
    failures: list[tuple[str, str, str]] = field(default_factory=list)  # when, error, message


@dataclass(frozen=True)
class Report:
    """A report. title: the server or the log; began, ended: milliseconds since the epoch. A table that was not
    requested is None."""

    title: str
    began: int
    ended: int
    charts: tuple[Chart, ...]
    groups: tuple[GroupRow, ...]
    streams: int | None = None
    dead_letters: tuple[DeadLetterRow, ...] | None = None
    queries: tuple[QueryRow, ...] | None = None


def charts_of(*drawn: tuple[str, str, Series], one_scale: bool = False) -> list[Chart]:
    """Return a chart of the highest lines for each (title, unit, lines). A name that is in two charts has the same
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
