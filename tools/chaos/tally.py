"""The sums of each fault's runs, and their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from spark_streams.operations.verify.history import Report

_COLUMNS = ("lost", "duplicated", "reordered", "early", "pending")


@dataclass
class Verdict:
    """Verdict on one run.

    counts: faults by kind; wrong: other faults; failed: error that stopped the run itself; choices: of its random
    generator.
    """

    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    failed: str = ""
    text: str = ""
    choices: str = ""

    @classmethod
    def from_report(cls, report: Report, wrong: Sequence[str] = (), choices: str = "") -> Verdict:
        """Return the verdict on a completed run."""
        return cls(report.faults(), list(wrong), text=str(report) if report else "", choices=choices)

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.counts or self.wrong or self.failed)

    def __str__(self) -> str:
        choices = f"({self.choices})" if self.choices else ""
        return "; ".join(part for part in (choices, *self.wrong, self.text, self.failed[:500]) if part)


class Tally:
    """Sums by fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        self._rows: dict[str, Counter[str]] = {fault: Counter() for fault in faults}

    def add(self, fault: str, verdict: Verdict) -> None:
        """Add a run."""
        row = self._rows[fault]
        row["runs"] += 1
        row["failed"] += bool(verdict.failed)
        row["other"] += len(verdict.wrong)
        for kind, count in verdict.counts.items():
            row[kind if kind in _COLUMNS else "other"] += count

    @property
    def is_bad(self) -> bool:
        """Whether any run has a fault."""
        return any(count for row in self._rows.values() for kind, count in row.items() if kind != "runs")

    def show(self, title: str, console: Console) -> None:
        """Print the table."""
        table = Table(title=title, title_justify="left", pad_edge=False)
        columns = ("runs", *_COLUMNS, "other", "failed")
        table.add_column("fault", no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right")
        for fault, row in self._rows.items():
            if not row["runs"]:
                continue
            shown = [str(row[column]) for column in columns]
            shown[1:] = [f"[red]{text}[/]" if text != "0" else text for text in shown[1:]]
            table.add_row(fault, *shown)
        console.print(table)
