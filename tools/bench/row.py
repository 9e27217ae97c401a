"""A row of the table: what is measured, on which two sides, and what came out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Row:
    """One measure. `ours` and `peer` run it once and give its figure; they are called in turns.

    The ratio is ours to the peer's, round by round; `at_least` says which side of the target is good. Without a peer
    the figure itself is held against the target.
    """

    number: str
    measure: str
    ran: str  # what was run, in one line
    unit: str
    target: float | None
    ours: Callable[[], float]
    peer: Callable[[], float] | None = None
    peer_name: str = "redis-server"
    at_least: bool = True
    rounds: int | None = None  # where one is as good as many, or a round is long
    our_figures: list[float] = field(default_factory=list)
    peer_figures: list[float] = field(default_factory=list)
    skipped: str = ""  # why there are no figures

    @property
    def ratios(self) -> list[float]:
        """Ours to the peer's, by round; without a peer, ours."""
        if self.peer is None:
            return self.our_figures
        return [
            one / other if other else float("inf")
            for one, other in zip(self.our_figures, self.peer_figures, strict=True)
        ]

    @property
    def met(self) -> bool | None:
        """Whether the median is on the good side of the target."""
        if self.target is None or not self.ratios:
            return None
        middle = statistics.median(self.ratios)
        return middle >= self.target if self.at_least else middle <= self.target

    def summary(self) -> dict[str, object]:
        """Everything, for programs."""
        return {
            "number": self.number, "measure": self.measure, "ran": self.ran, "unit": self.unit,
            "peer": self.peer_name if self.peer is not None else None, "target": self.target,
            "target_is": "at least" if self.at_least else "at most", "met": self.met, "skipped": self.skipped or None,
            "ours": self.our_figures, "peers": self.peer_figures, "ratios": self.ratios,
        }  # fmt: skip


def run_in_turns(rows: Sequence[Row], rounds: int, tell: Callable[[str], None]) -> None:
    """Measure all rows, our side and the peer's in turns, and the one that begins in turns, too."""
    for at in range(rounds):
        for row in rows:
            if row.skipped or at >= (row.rounds or rounds):
                continue
            tell(f"round {at + 1} of {rounds}: {row.number} {row.measure}")
            sides = [(row.ours, row.our_figures)]
            if row.peer is not None:
                sides.append((row.peer, row.peer_figures))
            for measure, figures in sides if at % 2 == 0 else reversed(sides):
                figures.append(measure())
