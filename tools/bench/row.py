"""A row of the table: a measure, its two sides, and their figures. They are printed, and written into figures.json.

docs/internals/figures.json has an object for each group, with machine, date, server and Spark, and a row for each
measure: medians, as the program prints them. tests/project/test_figures.py finds rates on the pages that are not in it.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FILE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "figures.json"

# A run of one side: its figure, or several figures by name for several rows.
Run = Callable[[], float | Mapping[str, float]]


class NoFigureError(RuntimeError):
    """A run that gives no figure: it took too long, or its program has ended."""


@dataclass
class Row:
    """One measure. The ratio is ours to the peer's, round by round; without a peer, the figure itself counts."""

    number: str
    measure: str
    ran: str  # description of the run, in one line
    unit: str
    target: float | None
    ours: Run
    peer: Run | None = None  # called in turns with `ours`
    peer_name: str = "redis-server"
    at_least: bool = True  # whether a ratio above the target is good
    rounds: int | None = None  # fewer rounds, if figures do not vary or a round takes long
    name: str = ""  # of the figure, if a run gives several
    peers_figure: str = ""  # the same of the peer's; empty: `name`
    our_figures: list[float] = field(default_factory=list)
    peer_figures: list[float] = field(default_factory=list)
    skipped: str = ""  # reason why there are no figures, or fewer rounds

    @property
    def ratios(self) -> list[float]:
        """Our figure divided by the peer's, by round. Without a peer, our figure."""
        if self.peer is None:
            return self.our_figures
        return [
            ours / peers if peers else 1.0 if not ours else float("inf")
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
    """Measure all rows. Our side and the peer's take turns, and so does the side that begins a round. A run that
    several rows have is made once a round; rows of one that gives no figure are not measured again."""
    for number in range(rounds):
        made: dict[Run, float | Mapping[str, float] | NoFigureError] = {}
        for row in rows:
            if row.skipped or number >= (row.rounds or rounds):
                continue
            tell(f"round {number + 1} of {rounds}: {row.number} {row.measure}")
            sides = [(row.ours, row.name, row.our_figures)]
            if row.peer is not None:
                sides.append((row.peer, row.peers_figure or row.name, row.peer_figures))
            found = []
            for run, name, figures in sides if number % 2 == 0 else reversed(sides):
                if run not in made:
                    try:
                        made[run] = run()
                    except NoFigureError as error:
                        made[run] = error
                value = made[run]
                if isinstance(value, NoFigureError):
                    row.skipped = str(value)
                else:
                    found.append((figures, value[name] if isinstance(value, Mapping) else value))
            if not row.skipped:
                for figures, value in found:
                    figures.append(value)


# -- the table ---------------------------------------------------------------------------------------------------------


def show(rows: Sequence[Row], title: str, console: Console) -> None:
    """Print the table, and below it the description of each run."""
    table = Table(title=title, title_justify="left", pad_edge=False)
    for name in ("#", "measure", "ours", "peer", "", "measured", "range", "target"):
        table.add_column(name, justify="right" if name in {"ours", "peer", "measured"} else "left")
    for row in rows:
        sign, times = "≥" if row.at_least else "≤", row.peer is not None
        target = "" if row.target is None else f"{sign} {_ratio(row.target, row, 'g')}"
        if row.skipped and not row.our_figures:
            table.add_row(row.number, row.measure, "", "", "", "[dim]" + row.skipped.partition("\n")[0], "", target)
            continue
        ours = figure(statistics.median(row.our_figures), row.unit)
        peer = figure(statistics.median(row.peer_figures), row.unit) if times else ""
        colour = {True: "green", False: "red", None: "default"}[row.meets_target]
        measured = f"[{colour}]{_ratio(statistics.median(row.ratios), row)}"
        spread = " … ".join(format(edge, ".2f" if times else ".4g") for edge in (min(row.ratios), max(row.ratios)))
        table.add_row(row.number, row.measure, ours, peer, row.peer_name if times else "", measured, spread, target)
    console.print(table)
    console.print("\nWhat was run:")
    for row in rows:
        said = f"{row.ran}; not in each round: {row.skipped}" if row.skipped else row.ran
        console.print(f"  {row.number:<5} {row.measure}: [dim]{said}", highlight=False)


def figure(value: float, unit: str) -> str:
    """Return a figure with its unit, such as `1.23 M/s` or `31 B`."""
    if unit.startswith("/"):
        if value >= 1e6:
            return f"{value / 1e6:.2f} M{unit}"
        if value >= 1e3:
            return f"{value / 1e3:.1f} k{unit}"
    return f"{value:.4g} {unit}"


def _ratio(value: float, row: Row, form: str = ".2f") -> str:
    return figure(value, row.unit) if row.peer is None else f"{value:{form}}×"


# -- the file ----------------------------------------------------------------------------------------------------------


def record(group: str, rows: Sequence[Row], file: Path = FILE, part: bool = False) -> None:
    """Write a group that was measured into the file, in place of the one that is there. part: in place of the same
    rows of it."""
    groups = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    found = [_summary(row) for row in rows if row.our_figures]
    if part:
        keys = {_key(one) for one in found}
        found = [one for one in groups.get(group, {"rows": []})["rows"] if _key(one) not in keys] + found
    groups[group] = {**_circumstances(), "rows": found}
    file.write_text(json.dumps(groups, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _key(summary: Mapping[str, object]) -> tuple[object, ...]:
    return summary["number"], summary["measure"], summary.get("peer")


def rows_in(file: Path = FILE) -> list[dict[str, Any]]:
    """Return the rows of all groups."""
    groups = json.loads(file.read_text(encoding="utf-8"))
    return [row for group in groups.values() for row in group["rows"]]


def _circumstances() -> dict[str, str]:
    """Return what the figures depend on."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    version = next(word for word in said.split() if word.startswith("v=")).removeprefix("v=")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "server": f"{said.split()[0]} {version}",
        "spark": importlib.metadata.version("pyspark"),
    }


def _summary(row: Row) -> dict[str, object]:
    """Return a row's medians with three digits: the next ones are noise. ratio: ours to the peer's."""
    figures = {"ours": row.our_figures}
    summary: dict[str, object] = {
        "number": row.number, "measure": row.measure, "unit": row.unit, "rounds": len(row.our_figures)
    }  # fmt: skip
    if row.peer is not None:
        figures |= {"peers": row.peer_figures, "ratio": row.ratios}
        summary["peer"] = row.peer_name
    return summary | {side: float(f"{statistics.median(values):.3g}") for side, values in figures.items()}
