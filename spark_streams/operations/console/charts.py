"""Charts of the console: lines over time. Pure: values in, positions out.

Positions are percentages of a chart's width and height. templates/charts.html draws them as SVG: the browser stretches
the lines to its width, and texts keep their size. The colours are the page's (`--c0` … in static/style.css).

Lines of similar size share a panel. If one line is so large that another one would be flat on the axis, each line has
its own panel and scale, one above the other over the same time axis.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_streams.base.given_text import from_milliseconds
from spark_streams.base.units import duration, short
from spark_streams.connector.lag.survey import Survey
from spark_streams.operations.monitor.rates import Key, Rates, rates_between, total

LINES = 6  # of a chart, the highest ones; the legend names the number of the others
_FLAT = 20  # a line that is this many times smaller than the largest looks flat
_POINTS = 300  # of a line; longer lines are thinned
_TICKS, _OWN_TICKS = 4, 2  # steps of an axis, and of the axis of one line
_STEPS_OF_TIME = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
_BEHIND = "Behind: age of the oldest entry not acknowledged"

Point = tuple[int, float | None]  # milliseconds since the epoch, value; None: not known at that time
GroupPoint = tuple[int, int | None, int | None]  # the same with a group's lag, and the age of its oldest entry


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart. points: in order of time, None for a gap; colour: 0 … LINES−1, the same for a name in all
    charts that are drawn together."""

    name: str
    points: Sequence[Point]
    colour: int = 0

    @property
    def peak(self) -> float:
        """The largest value."""
        return max((value for _, value in self.points if value is not None), default=0.0)


@dataclass(frozen=True)
class Chart:
    """A chart."""

    title: str
    unit: str  # `entries`, `per second` or `ms`
    lines: Sequence[ChartLine]
    left_out: int = 0  # number of lines beyond LINES, none of them higher
    one_scale: bool = False  # all lines share a scale, because readers compare them


class Dot(NamedTuple):
    """A point of a line. title: its value and its time, for a pointer that rests on it."""

    x: float
    y: float
    title: str


class Drawn(NamedTuple):
    """The positions of a line."""

    name: str
    colour: int
    path: str  # for the element `path`
    dots: Sequence[Dot]
    last: str  # its last value, for the legend


class Panel(NamedTuple):
    """Lines over one scale. values: height and label of each grid line."""

    values: Sequence[tuple[float, str]]
    lines: Sequence[Drawn]


class Drawing(NamedTuple):
    """The positions of a chart. has_own_scales: each panel has one line; times: place and label of each mark below."""

    panels: Sequence[Panel]
    has_own_scales: bool
    times: Sequence[tuple[float, str]]


def charts_of(*drawn: tuple[str, str, Mapping[str, Iterable[Point]]], one_scale: bool = False) -> list[Chart]:
    """Return a chart of the highest lines for each (title, unit, points by name). A name that is in two charts has the
    same colour in both. one_scale: as in Chart."""
    charts = []
    colours: dict[str, int] = {}
    for title, unit, points in drawn:
        lines = [ChartLine(name, sorted(points[name], key=lambda point: point[0])) for name in points]
        lines.sort(key=lambda line: -line.peak)
        names = [line.name for line in lines[:LINES]]
        free = sorted({*range(LINES)} - {colours[name] for name in names if name in colours})
        colours |= dict(zip(sorted(name for name in names if name not in colours), free, strict=False))
        shown = [replace(line, colour=colours[line.name]) for line in lines[:LINES]]
        charts.append(Chart(title, unit, shown, len(lines) - len(shown), one_scale))
    return charts


def lag_charts(groups: Mapping[Key, Sequence[GroupPoint]]) -> list[Chart]:
    """Return a chart of the lags of groups, and one of their ages."""
    named = {f"{group} of {stream}": points for (stream, group), points in groups.items()}
    lags = {name: [(at_ms, lag) for at_ms, lag, _ in points] for name, points in named.items()}
    ages = {name: [(at_ms, age_ms) for at_ms, _, age_ms in points] for name, points in named.items()}
    return charts_of(("Lag", "entries", lags), (_BEHIND, "ms", ages))


def drawing(chart: Chart, began: int, ended: int) -> Drawing:
    """Return the positions of a chart from `began` to `ended` (milliseconds since the epoch)."""
    span = max(1, ended - began)

    def x(at_ms: int) -> float:
        return round(100 * (at_ms - began) / span, 2)

    shown = [line for line in chart.lines if any(value is not None for _, value in line.points)]
    peaks = [line.peak for line in shown if line.peak > 0]
    has_own_scales = not chart.one_scale and bool(peaks) and min(peaks) * _FLAT < max(peaks)
    if has_own_scales:
        panels = [_panel([line], chart.unit, x, _OWN_TICKS) for line in shown]
    else:
        panels = [_panel(shown, chart.unit, x, _TICKS)] if shown else []
    return Drawing(panels, has_own_scales, [(x(at_ms), label) for at_ms, label in time_ticks(began, ended)])


def sparkline(values: Sequence[float | None]) -> str:
    """Return the path of values from zero to their maximum, for a small line without axes."""
    heights = [value for value in values if value is not None]
    top = max(heights, default=0)
    if top == min(heights, default=0):
        top = 2 * top or 1  # a constant is drawn in the middle, zero at the bottom
    step = 100 / max(1, len(values) - 1)
    return _path((place * step, None if value is None else _y(value, top)) for place, value in enumerate(values))


def thinned(points: Sequence[Point], max_points: int) -> list[Point]:
    """Return about `max_points` points: the lowest and the highest of each bucket, so that no peak is lost."""
    if len(points) <= max_points:
        return list(points)
    size = math.ceil(len(points) / (max_points // 2))
    thinned_points: list[Point] = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        values = [(value, when) for when, value in bucket if value is not None]
        if not values:
            thinned_points.append((bucket[0][0], None))
            continue
        thinned_points += [(when, value) for when, value in sorted({(w, v) for v, w in (min(values), max(values))})]
    return thinned_points


def value_ticks(top: float, unit: str, steps: int = _TICKS) -> list[float]:
    """Return round values from 0 to at least `top` in `steps` steps or fewer; times in seconds, minutes, hours."""
    if unit == "ms" and top >= 60_000:
        step = next((s * 1000.0 for s in _STEPS_OF_TIME if s * 1000 * steps >= top), math.ceil(top / steps))
    else:
        rough = max(top, 1) / steps
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * lead for lead in (1, 2, 2.5, 5, 10) if power * lead >= rough)
        step = max(step, 1.0)
    return [step * number for number in range(max(1, math.ceil(top / step)) + 1)]


def time_ticks(began: int, ended: int) -> list[tuple[int, str]]:
    """Return about six round times (UTC) between the two, each with its label."""
    seconds = max(1, ended - began) / 1000
    step = next((s for s in _STEPS_OF_TIME if seconds / s <= 7), math.ceil(seconds / 7 / 86_400) * 86_400) * 1000
    first = -(-began // step) * step
    return [
        (at_ms, _clock(at_ms, seconds=step < 60_000, day=step >= 43_200_000)) for at_ms in range(first, ended + 1, step)
    ]


def _panel(lines: Sequence[ChartLine], unit: str, x: Callable[[int], float], steps: int) -> Panel:
    ticks = value_ticks(max(line.peak for line in lines), unit, steps)
    top = ticks[-1]
    return Panel([(_y(tick, top), _axis(tick, unit)) for tick in ticks], [_drawn(line, unit, x, top) for line in lines])


def _drawn(line: ChartLine, unit: str, x: Callable[[int], float], top: float) -> Drawn:
    places = [(at_ms, value, x(at_ms)) for at_ms, value in thinned(line.points, _POINTS)]
    known = [(at_ms, value, place) for at_ms, value, place in places if value is not None]
    return Drawn(
        line.name,
        line.colour,
        _path((place, None if value is None else _y(value, top)) for _, value, place in places),
        [
            Dot(place, _y(value, top), f"{line.name}: {_value(value, unit)} at {_clock(at_ms, seconds=True)} UTC")
            for at_ms, value, place in known
        ],
        _value(known[-1][1], unit),
    )


def _y(value: float, top: float) -> float:
    return round(100 - 100 * value / top, 2)


def _path(places: Iterable[tuple[float, float | None]]) -> str:
    """Return the path through these places. It breaks where there is no value."""
    path, pen_down = [], False
    for x, y in places:
        if y is not None:
            path.append(f"{'L' if pen_down else 'M'}{x:.2f} {y:.2f}")
        pen_down = y is not None
    return " ".join(path)


def _value(value: float, unit: str) -> str:
    """Return a value with its unit."""
    if unit == "ms":
        return duration(value)
    return f"{value:,.0f}{'/s' if unit == 'per second' else ''}"


def _axis(value: float, unit: str) -> str:
    if unit == "ms":
        return "0" if value == 0 else duration(value).replace(" 00 s", "").replace(".0 s", " s")
    return short(value)


def _clock(at_ms: int, seconds: bool, day: bool = False) -> str:
    moment = from_milliseconds(at_ms)
    return moment.strftime("%b %d" if day else "%H:%M:%S" if seconds else "%H:%M")


POINTS = 120  # of a group
_RATE_MS = 8_000  # rates are computed over about this time
_MAX_GROUPS = 20_000  # whose lags are kept


class LagHistory:
    """The lag, and its age, of each group in the last snapshots; and the throughput of all groups together."""

    def __init__(self) -> None:
        self._lags: dict[Key, deque[GroupPoint]] = {}
        self._surveys: deque[Survey] = deque()
        self.rates: dict[Key, Rates] = {}
        self._totals: deque[tuple[int, Rates]] = deque(maxlen=POINTS)

    def add(self, survey: Survey) -> None:
        """Add a later snapshot. A snapshot of the same moment changes nothing."""
        if self._surveys and survey.at_ms <= self._surveys[-1].at_ms:
            return
        present = {(group.stream, group.group): group for group in survey.groups[:_MAX_GROUPS]}
        for key in self._lags.keys() - present.keys():
            del self._lags[key]
        for key, group in present.items():
            self._lags.setdefault(key, deque(maxlen=POINTS)).append((survey.at_ms, group.lag, group.lag_ms))
        self._surveys.append(survey)
        while len(self._surveys) > 2 and survey.at_ms - self._surveys[1].at_ms >= _RATE_MS:
            self._surveys.popleft()
        if len(self._surveys) > 1:
            self.rates = rates_between(self._surveys[0], survey)
            self._totals.append((survey.at_ms, total(self.rates)))

    def lags(self, key: Key) -> list[float | None]:
        """Return the lags of a group, the oldest first."""
        return [lag for _, lag, _ in self._lags.get(key, ())]

    def charts(self, keys: Iterable[Key]) -> list[Chart]:
        """Return charts of the lag of these groups, and of its age."""
        return lag_charts({key: self._lags[key] for key in keys if key in self._lags})

    def throughput(self) -> list[Chart]:
        """Return a chart of the throughput of all groups together."""
        lines = {
            "added": [(at_ms, rates.added) for at_ms, rates in self._totals],
            "delivered": [(at_ms, rates.delivered) for at_ms, rates in self._totals],
            "acknowledged": [(at_ms, rates.acknowledged) for at_ms, rates in self._totals],
        }
        return charts_of(("Throughput of all groups together", "per second", lines), one_scale=True)

    @property
    def period(self) -> tuple[int, int]:
        """(first, last) moment of the charts, in milliseconds since the epoch."""
        moments = [lags[0][0] for lags in self._lags.values()] or [self._surveys[-1].at_ms]
        return min(moments), self._surveys[-1].at_ms
