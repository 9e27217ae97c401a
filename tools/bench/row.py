"""A row of the table: a measure, its two sides, and their figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


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
