"""Draws the panels of grafana.json from what a Prometheus has, where there is no Grafana to look at them in:

python -m tests.operations.monitor.draw_dashboard --prometheus http://localhost:9090 --minutes 10 --out /tmp/dashboard

One PNG for the board as it is laid out, and one for each panel. It needs matplotlib, which no extra brings.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tests.operations.monitor.dashboard import Panel, panels
from tests.operations.monitor.prometheus import Prometheus

_LEGEND = 8  # series that are named below a panel

Series = tuple[int, dict[str, str], str, list[float], list[float]]  # which query, labels, name, minutes, values


def main() -> None:
    """See above."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--prometheus", default="http://localhost:9090")
    given.add_argument("--minutes", type=float, default=60)
    given.add_argument("--interval", default="1m", help="$__rate_interval: four scrapes or more")
    given.add_argument("--until", type=float, default=0, help="seconds since the epoch; now")
    given.add_argument("--out", type=Path, default=Path("dashboard"))
    chosen = given.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    end = chosen.until or time.time()
    begin = end - 60 * chosen.minutes
    source = Prometheus(chosen.prometheus)
    drawn = [(one, _series(source, one, begin, end)) for one in panels(chosen.interval)]
    rows = max(one.place[1] + one.place[3] for one, _ in drawn)
    whole = plt.figure(figsize=(20, rows * 0.45))
    for one, series in drawn:
        x, y, width, height = one.place
        low = 0.2 if one.kind == "timeseries" else 0.0
        bottom = 1 - (y + height * (1 - low)) / rows
        box = (x / 24 + 0.035, bottom, width / 24 - 0.045, height * (0.88 - low) / rows)
        _draw(whole.add_axes(box), one, series, chosen.minutes)
        alone, its = plt.subplots(figsize=(9, 4.5))
        _draw(its, one, series, chosen.minutes)
        name = re.sub(r"\W+", "-", f"{y:02}-{x:02}-{one.title.lower()}").strip("-")
        alone.savefig(chosen.out / f"{name}.png", dpi=90, bbox_inches="tight")
        plt.close(alone)
    whole.savefig(chosen.out / "board.png", dpi=70)
    print(f"{len(drawn)} panels drawn in {chosen.out}")


def _series(source: Prometheus, panel: Panel, begin: float, end: float) -> list[Series]:
    step = max(1.0, (end - begin) / 400)
    found: list[Series] = []
    for place, (query, legend) in enumerate(panel.queries):
        for one in source.ranges(query, begin, end, step):
            minutes, values = _with_gaps(one["values"], begin, step)
            found.append((place, one["metric"], _named(legend, one["metric"]) or query, minutes, values))
    return found


def _with_gaps(told: Sequence[tuple[float, str]], begin: float, step: float) -> tuple[list[float], list[float]]:
    """A point that is no number wherever nothing was there."""
    minutes: list[float] = []
    values: list[float] = []
    for at, value in told:
        minute = (at - begin) / 60
        if minutes and minute - minutes[-1] > 1.5 * step / 60:
            minutes.append(minutes[-1] + step / 60)
            values.append(math.nan)
        minutes.append(minute)
        values.append(float(value))
    return minutes, values


def _named(legend: str, labels: Mapping[str, Any]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: str(labels.get(found[1], "")), legend)


def _draw(axes: Axes, panel: Panel, series: list[Series], minutes: float) -> None:
    axes.set_title(panel.title, fontsize=11, loc="left", weight="bold")
    if panel.kind != "timeseries":
        axes.axis("off")
        (_draw_table if panel.columns else _draw_number)(axes, panel, series)
        return
    if panel.stacked:
        ticks = sorted({minute for *_, its, _ in series for minute in its})
        levels = [[dict(zip(its, values, strict=True)).get(tick, 0.0) for tick in ticks] for *_, its, values in series]
        axes.stackplot(ticks, levels, labels=[name for _, _, name, _, _ in series], alpha=0.6)
    else:
        for _, _, name, its, values in series:
            axes.plot(its, values, label=name, linewidth=1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _text(value, panel.unit)))
    if panel.lowest is not None:
        axes.set_ylim(bottom=panel.lowest)
    if panel.highest is not None:
        axes.set_ylim(top=panel.highest * 1.05)
    axes.set_xlim(0, minutes)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("minutes", fontsize=8, loc="right")
    if series:
        handles, names = axes.get_legend_handles_labels()
        shown = (handles[:_LEGEND], names[:_LEGEND])
        axes.legend(*shown, fontsize=7, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=3, frameon=False)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


def _draw_number(axes: Axes, panel: Panel, series: list[Series]) -> None:
    """The last value."""
    shown = "no data"
    for *_, values in series[:1]:
        shown = panel.words.get(f"{values[-1]:g}", _text(values[-1], panel.unit))
    axes.text(0.5, 0.5, shown, fontsize=20, ha="center", va="center", transform=axes.transAxes)


def _draw_table(axes: Axes, panel: Panel, series: list[Series]) -> None:
    """The last values, a row for each group."""
    rows: dict[str, list[str]] = {}
    for place, labels, _, _, values in series:
        cells = rows.setdefault(f"{labels['stream']} / {labels['group']}", ["-"] * len(panel.columns))
        cells[place] = _text(values[-1], panel.columns[place][1])
    titles = [title for title, _ in panel.columns]
    if rows:
        names = sorted(rows)
        axes.table([rows[name] for name in names], rowLabels=names, colLabels=titles, bbox=(0.12, 0, 0.88, 0.9))


def _text(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value / 60:.1f} min" if value >= 120 else f"{value:.3g} s"
    if unit == "percentunit":
        return f"{100 * value:.0f}%"
    if unit == "bytes":
        return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 1024:.0f} KiB"
    return f"{value / 1000:.3g} K" if value >= 10_000 else f"{value:.4g}"


if __name__ == "__main__":
    main()
