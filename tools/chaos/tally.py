"""What each fault has done so far, and the table of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from tools.chaos.checker import Report

_COLUMNS = ("lost", "duplicated", "reordered", "early", "pending")


@dataclass
class Verdict:
    """One run: how many of each kind of wrong; wrong: what else; failed: why the run itself did not come to its end;
    chosen: what chance chose in it."""

    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    failed: str = ""
    text: str = ""
    chosen: str = ""

    @classmethod
    def of(cls, report: Report, wrong: Sequence[str] = (), chosen: str = "") -> Verdict:
        """Of a run that came to its end."""
        return cls(report.faults(), list(wrong), text=str(report) if report else "", chosen=chosen)

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.counts or self.wrong or self.failed)

    def __str__(self) -> str:
        chosen = f"({self.chosen})" if self.chosen else ""
        return "; ".join(part for part in (chosen, *self.wrong, self.text, self.failed[:500]) if part)


class Tally:
    """Sums by fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        self._rows: dict[str, Counter[str]] = {fault: Counter() for fault in faults}

    def add(self, fault: str, verdict: Verdict) -> None:
        """One more run."""
        row = self._rows[fault]
        row["runs"] += 1
        row["failed"] += bool(verdict.failed)
        row["other"] += len(verdict.wrong)
        for kind, count in verdict.counts.items():
            row[kind if kind in _COLUMNS else "other"] += count

    @property
    def is_bad(self) -> bool:
        """Whether any run was not as it should be."""
        return any(count for row in self._rows.values() for kind, count in row.items() if kind != "runs")

    def show(self, title: str, console: Console) -> None:
        """The table."""
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
