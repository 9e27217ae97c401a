"""The engine's time, in Unix milliseconds: the machine's clock, or one that tests move (DEBUG CLOCK)."""

from __future__ import annotations

import time
from collections.abc import Callable


def unix_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class MovedClock:
    """A clock that a test has moved. machine: the clock that it is set by."""

    def __init__(self, machine: Callable[[], int]) -> None:
        self.machine = machine
        self._ahead = 0
        self._stands_at: int | None = None

    def __call__(self) -> int:
        return self.machine() + self._ahead if self._stands_at is None else self._stands_at

    def advance(self, milliseconds: int) -> None:
        """Move the time on. A clock that stands goes on standing."""
        if self._stands_at is None:
            self._ahead += milliseconds
        else:
            self._stands_at += milliseconds

    def freeze(self, moment: int | None) -> None:
        """Stop the clock: at this moment, or at the present one."""
        self._stands_at = self() if moment is None else moment

    def go_on(self) -> None:
        """Let a clock that stands run again, from where it stands."""
        self._ahead, self._stands_at = self() - self.machine(), None
