"""Print the rows as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tools.bench.row import Row


def show(rows: Sequence[Row], title: str, console: Console) -> None:
    """Print the table, and below it the description of each run."""
    table = Table(title=title, title_justify="left", pad_edge=False)
    for name in ("#", "measure", "ours", "peer", "", "measured", "range", "target"):
        table.add_column(name, justify="right" if name in {"ours", "peer", "measured"} else "left")
    for row in rows:
        if row.skipped:
            table.add_row(row.number, row.measure, "", "", "", "[dim]" + row.skipped, "", _target(row))
            continue
        ours = figure(statistics.median(row.our_figures), row.unit)
        peer = figure(statistics.median(row.peer_figures), row.unit) if row.peer_figures else ""
        measured = statistics.median(row.ratios)
        colour = {True: "green", False: "red", None: "default"}[row.meets_target]
        shown = f"{measured:.2f}×" if row.peer is not None else figure(measured, row.unit)
        low, high = min(row.ratios), max(row.ratios)
        spread = f"{low:.2f} … {high:.2f}" if row.peer is not None else f"{low:.4g} … {high:.4g}"
        name = row.peer_name if row.peer is not None else ""
        table.add_row(row.number, row.measure, ours, peer, name, f"[{colour}]{shown}", spread, _target(row))
    console.print(table)
    console.print("\nWhat was run:")
    for row in rows:
        console.print(f"  {row.number:<5} {row.measure}: [dim]{row.ran}", highlight=False)


def figure(value: float, unit: str) -> str:
    """Return a figure with its unit, such as `1.23 M/s` or `31 B`."""
    if unit.startswith("/"):
        if value >= 1e6:
            return f"{value / 1e6:.2f} M{unit}"
        if value >= 1e3:
            return f"{value / 1e3:.1f} k{unit}"
    return f"{value:.4g} {unit}"


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    sign = "≥" if row.at_least else "≤"
    return f"{sign} {row.target:g}×" if row.peer is not None else f"{sign} {figure(row.target, row.unit)}"
