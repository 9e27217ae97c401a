"""A row of the table: a measure, its two sides, and their figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass
class Row:
    """One measure. `ours` and `peer` run it once and return its figure; they are called in turns.

    The ratio is ours to the peer's, round by round. `at_least` is true if a ratio above the target is good. Without a
    peer, the figure itself is compared with the target.
    """

    number: str
    measure: str
    ran: str  # description of the run, in one line
    unit: str
    target: float | None
    ours: Callable[[], float]
    peer: Callable[[], float] | None = None
    peer_name: str = "redis-server"
    at_least: bool = True
    rounds: int | None = None  # fewer rounds, if figures do not vary or a round takes long
    our_figures: list[float] = field(default_factory=list)
    peer_figures: list[float] = field(default_factory=list)
    skipped: str = ""  # reason why there are no figures

    @property
    def ratios(self) -> list[float]:
        """Our figure divided by the peer's, by round. Without a peer, our figure."""
        if self.peer is None:
            return self.our_figures
        return [
            ours / peers if peers else float("inf")
            for ours, peers in zip(self.our_figures, self.peer_figures, strict=True)
        ]

    @property
    def meets_target(self) -> bool | None:
        """Whether the median reaches the target. None if there is no target, or no figure."""
        if self.target is None or not self.ratios:
            return None
        middle = statistics.median(self.ratios)
        return middle >= self.target if self.at_least else middle <= self.target


def run_in_turns(rows: Sequence[Row], rounds: int, tell: Callable[[str], None]) -> None:
    """Measure all rows. Our side and the peer's take turns, and so does the side that begins a round. A function that
    several rows have is called once a round."""
    for round_number in range(rounds):
        measured: dict[Callable[[], float], float] = {}
        for row in rows:
            if row.skipped or round_number >= (row.rounds or rounds):
                continue
            tell(f"round {round_number + 1} of {rounds}: {row.number} {row.measure}")
            sides = [(row.ours, row.our_figures)]
            if row.peer is not None:
                sides.append((row.peer, row.peer_figures))
            for measure, figures in sides if round_number % 2 == 0 else reversed(sides):
                if measure not in measured:
                    measured[measure] = measure()
                figures.append(measured[measure])


# -- the table ---------------------------------------------------------------------------------------------------------


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
