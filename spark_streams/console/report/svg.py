"""Charts as inline SVG: lines over time. Pure: a chart in, markup out.

Lines of similar size share a panel. If one line is so large that another one would be flat on the axis, each line has
its own panel and scale, one above the other over the same time axis.

Positions are computed here; the elements are in templates/chart.html, the colours in templates/style.css (`--c0` …).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from spark_streams.console.report.rendering import render
from spark_streams.console.report.report import Chart, Line
from spark_streams.console.report.series import thinned
from spark_streams.model.times import from_milliseconds
from spark_streams.monitor.terminal.units import duration, short

_WIDTH = 760
_HEIGHT, _TOP = 192, 12  # of a shared panel, and the free space above it
_OWN_HEIGHT, _OWN_TOP = 58, 26  # of a panel with one line, and the space above it for its name
_LEFT, _RIGHT, _BOTTOM = 62, 14, 26
_SPARK_WIDTH, _SPARK_HEIGHT = 100, 22
_FLAT = 20  # a line that is this many times smaller than the largest looks flat
_POINTS = 300  # of a line; longer lines are thinned
_TICKS, _OWN_TICKS = 4, 2
_STEPS_OF_TIME = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


class _Value(NamedTuple):
    """A horizontal grid line, and its label on the left."""

    y: str
    text_y: str
    label: str


class _Time(NamedTuple):
    """A mark below the chart, and its label."""

    x: str
    y1: str
    y2: str
    anchor: str
    label: str


class _Dot(NamedTuple):
    x: str
    y: str
    title: str


class _Drawn(NamedTuple):
    """A line of the chart; last: its last value, for the legend."""

    name: str
    colour: int
    path: str
    dots: list[_Dot]
    last: str


class _Panel(NamedTuple):
    """Lines over one scale. head: position of the name of its only line, empty if lines share the panel."""

    values: list[_Value]
    lines: list[_Drawn]
    head: str


def draw(chart: Chart, began: int, ended: int) -> Markup:
    """Draw the chart from `began` to `ended` (milliseconds since the epoch), with its legend."""
    shown = [line for line in chart.lines if any(value is not None for _, value in line.points)]
    span = max(1, ended - began)

    def x(at_ms: float) -> float:
        return _LEFT + (at_ms - began) / span * (_WIDTH - _LEFT - _RIGHT)

    if chart.one_scale or not _some_are_flat(shown):
        bottom = float(_TOP + _HEIGHT)
        panels = [_panel(shown, chart.unit, x, bottom, _HEIGHT, _TICKS)] if shown else []
    else:
        bottom, panels = 0.0, []
        for line in shown:
            bottom += _OWN_TOP + _OWN_HEIGHT
            panels.append(_panel([line], chart.unit, x, bottom, _OWN_HEIGHT, _OWN_TICKS, bottom - _OWN_HEIGHT - 9))
    return render(
        "chart.html",
        title=chart.title,
        width=_WIDTH,
        height=f"{bottom + _BOTTOM:.0f}",
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        panels=panels,
        times_y=_px(bottom + _BOTTOM - 8),
        times=[
            _Time(_px(x(at_ms)), _px(bottom), _px(bottom + 4), _anchor(x(at_ms)), label)
            for at_ms, label in time_ticks(began, ended)
        ],
        left_out=chart.left_out,
    )


def sparkline(values: Sequence[float | None]) -> Markup:
    """Draw values from zero to their maximum as a small line without axes."""
    heights = [value for value in values if value is not None]
    top = max(heights, default=0)
    if top == min(heights, default=0):
        top = 2 * top or 1  # a constant is drawn in the middle, zero at the bottom
    step = _SPARK_WIDTH / max(1, len(values) - 1)
    path, pen_down = [], False
    for place, value in enumerate(values):
        if value is not None:
            y = _SPARK_HEIGHT - 2 - value / top * (_SPARK_HEIGHT - 4)
            path.append(f"{'L' if pen_down else 'M'}{_px(place * step)} {_px(y)}")
        pen_down = value is not None
    return render("sparkline.html", width=_SPARK_WIDTH, height=_SPARK_HEIGHT, path=" ".join(path))


def _some_are_flat(lines: Sequence[Line]) -> bool:
    peaks = [line.peak for line in lines if line.peak > 0]
    return bool(peaks) and min(peaks) * _FLAT < max(peaks)


def _panel(
    lines: Sequence[Line],
    unit: str,
    x: Callable[[float], float],
    bottom: float,
    height: float,
    steps: int,
    head: float | None = None,
) -> _Panel:
    """Draw lines over one scale from `bottom` up. head: position of their name above."""
    ticks = value_ticks(max(line.peak for line in lines), unit, steps)

    def y(value: float) -> float:
        return bottom - value / ticks[-1] * height

    return _Panel(
        [_Value(_px(y(tick)), _px(y(tick) + 4), _axis(tick, unit)) for tick in ticks],
        [_drawn(line, unit, x, y) for line in lines],
        "" if head is None else _px(head),
    )


def _px(length: float) -> str:
    return f"{length:.1f}"


def _anchor(x: float) -> str:
    return "start" if x < _LEFT + 24 else "end" if x > _WIDTH - _RIGHT - 24 else "middle"


def _drawn(line: Line, unit: str, x: Callable[[float], float], y: Callable[[float], float]) -> _Drawn:
    path, pen_down = [], False
    dots = []
    for at_ms, value in thinned(line.points, _POINTS):
        if value is None:
            pen_down = False
            continue
        dot = _Dot(
            _px(x(at_ms)), _px(y(value)), f"{line.name}: {value_text(value, unit)} at {_clock(at_ms, seconds=True)} UTC"
        )
        path.append(f"{'L' if pen_down else 'M'}{dot.x} {dot.y}")
        pen_down = True
        dots.append(dot)
    return _Drawn(line.name, line.colour, " ".join(path), dots, value_text(_last(line), unit))


def _last(line: Line) -> float:
    return next((value for _, value in reversed(line.points) if value is not None), 0.0)


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit."""
    if unit == "ms":
        return duration(value)
    return f"{value:,.0f}{'/s' if unit == 'per second' else ''}"


def _axis(value: float, unit: str) -> str:
    if unit == "ms":
        return "0" if value == 0 else duration(value).replace(" 00 s", "").replace(".0 s", " s")
    return short(value)


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


def _clock(at_ms: int, seconds: bool, day: bool = False) -> str:
    moment = from_milliseconds(at_ms)
    return moment.strftime("%b %d" if day else "%H:%M:%S" if seconds else "%H:%M")
