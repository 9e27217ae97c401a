"""One step of a plan: what happens, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """delay: ticks that pass before it happens; 0: at once, between two things that Spark does.

    which, much, how: numbers from 0 to 1 that choose among what there is when it happens, so that a step keeps a
    meaning where others before it are left out. options: those of a (re)start.
    """

    kind: str
    delay: int = 0
    which: float = 0.0
    much: float = 0.0
    how: float = 0.0
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.kind:<14}", f"in {self.delay} ticks" if self.delay else "at once"]
        parts.append(f"which={self.which:.2f} much={self.much:.2f} how={self.how:.2f}")
        if self.options:
            parts.append(" ".join(f"{name}={value}" for name, value in self.options))
        return "  ".join(parts)


def pick(among: list[T], where: float) -> T:
    """The one at this fraction of the list."""
    return among[min(int(where * len(among)), len(among) - 1)]


def part(count: int, much: float) -> int:
    """So many of `count`: at least one where there are any."""
    return min(count, max(1, round(much * count)))
