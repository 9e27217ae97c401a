"""Charts as inline SVG: lines over time. Pure: a chart in, markup out; colours are the page's (`--c0` …)."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from html import escape

from spark_streams.monitor.report.report import Chart, Line
from spark_streams.monitor.report.series import thinned
from spark_streams.monitor.terminal.units import duration, short

_WIDTH, _HEIGHT = 760, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 12, 26
_POINTS = 300  # of a line; of more, each bucket's lowest and highest are drawn
_TICKS = 4
_STEPS_OF_TIME = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


def draw(chart: Chart, began: int, ended: int) -> str:
    """The chart from `began` to `ended` (milliseconds since the epoch), with its legend."""
    shown = [line for line in chart.lines if any(value is not None for _, value in line.points)]
    if not shown:
        return '<p class="none">nothing was measured</p>'
    span = max(1, ended - began)
    ticks = value_ticks(max(line.peak for line in shown), chart.unit)
    top = ticks[-1]

    def x(at: float) -> float:
        return _LEFT + (at - began) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}">{_axis(tick, chart.unit)}</text>')
    for at, label in time_ticks(began, ended):
        anchor = "start" if x(at) < _LEFT + 24 else "end" if x(at) > _WIDTH - _RIGHT - 24 else "middle"
        parts.append(f'<line class="tick" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y(0):.1f}" y2="{y(0) + 4:.1f}"/>')
        parts.append(f'<text x="{x(at):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{label}</text>')
    for line in reversed(shown):
        parts.append(_line(line, chart.unit, x, y))
    parts.append("</svg>")
    return "".join(parts) + _legend(shown, chart)


def _line(line: Line, unit: str, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    points = thinned(line.points, _POINTS)
    path, pen_down = [], False
    dots = []
    for at, value in points:
        if value is None:
            pen_down = False
            continue
        path.append(f"{'L' if pen_down else 'M'}{x(at):.1f} {y(value):.1f}")
        pen_down = True
        told = f"{line.name}: {said(value, unit)} at {_clock(at, seconds=True)} UTC"
        dots.append(f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="4"><title>{escape(told)}</title></circle>')
    alone = " alone" if len(dots) == 1 else ""
    drawn = " ".join(path)
    return f'<g class="c{line.colour}{alone}"><path d="{drawn}"/>{"".join(dots)}</g>'


def _legend(lines: Sequence[Line], chart: Chart) -> str:
    items = [
        f'<li class="c{line.colour}"><i></i>{escape(line.name)} <b>{said(_last(line), chart.unit)}</b></li>'
        for line in lines
    ]
    if chart.left_out:
        items.append(f"<li>and {chart.left_out:,} with less</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _last(line: Line) -> float:
    return next((value for _, value in reversed(line.points) if value is not None), 0.0)


def said(value: float, unit: str) -> str:
    """A value with its unit, for people."""
    if unit == "ms":
        return duration(value)
    return f"{value:,.0f}{'/s' if unit == 'per second' else ''}"


def _axis(value: float, unit: str) -> str:
    if unit == "ms":
        return "0" if value == 0 else duration(value).replace(" 00 s", "").replace(".0 s", " s")
    return short(value)


def value_ticks(top: float, unit: str) -> list[float]:
    """From 0 to at least `top` in round steps; times step in seconds, minutes, hours."""
    if unit == "ms" and top >= 60_000:
        step = next((s * 1000.0 for s in _STEPS_OF_TIME if s * 1000 * _TICKS >= top), math.ceil(top / _TICKS))
    else:
        rough = max(top, 1) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * lead for lead in (1, 2, 2.5, 5, 10) if power * lead >= rough)
        step = max(step, 1.0)
    return [step * at for at in range(max(1, math.ceil(top / step)) + 1)]


def time_ticks(began: int, ended: int) -> list[tuple[int, str]]:
    """Round moments (UTC) between the two, six or so, and how each is written."""
    seconds = max(1, ended - began) / 1000
    step = next((s for s in _STEPS_OF_TIME if seconds / s <= 7), math.ceil(seconds / 7 / 86_400) * 86_400) * 1000
    first = -(-began // step) * step
    return [(at, _clock(at, seconds=step < 60_000, day=step >= 43_200_000)) for at in range(first, ended + 1, step)]


def _clock(at: int, seconds: bool, day: bool = False) -> str:
    moment = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    return moment.strftime("%b %d" if day else "%H:%M:%S" if seconds else "%H:%M")
