"""The time of a plan: one number, which commands, pauses and steps move, and how far the server's clock is from it.
Nothing else moves them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

CLOCKS = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "sleep")  # of module time
COMMAND_NS = 50_000
_BEGIN = 1_700_000_000_000_000_000  # Unix time, nanoseconds


class PlanClock:
    """Replaces the functions of module `time` for engine and product. The monotonic clock begins at 1,000 s.

    command_ns: time that a request takes; server_ahead: nanoseconds by which the server's clock is ahead of this one,
    negative: behind; set_back: nanoseconds by which it was set back in all; shown: the latest Unix time in milliseconds
    that it had shown when it was set back.
    """

    def __init__(self) -> None:
        self.reset()

    @contextlib.contextmanager
    def in_charge(self) -> Iterator[None]:
        """Replace the clocks of module `time` while a plan runs. Between two plans other modules wait in real time."""
        real = {name: getattr(time, name) for name in CLOCKS}
        try:
            for name in CLOCKS:
                setattr(time, name, getattr(self, name))
            yield
        finally:
            for name, function in real.items():
                setattr(time, name, function)

    def reset(self) -> None:
        """Return to the first moment, and to one clock."""
        self._nanoseconds = self.server_ahead = self.set_back = self.shown = 0
        self.command_ns = COMMAND_NS

    @property
    def moment(self) -> int:
        """Nanoseconds since the first moment."""
        return self._nanoseconds

    def return_to(self, moment: int) -> None:
        """Return to an earlier moment: what has happened since took no time."""
        self._nanoseconds = moment

    def pass_ns(self, nanoseconds: int) -> None:
        """Move the time on."""
        self._nanoseconds += nanoseconds

    def sleep(self, seconds: float) -> None:
        """time.sleep: the time is over at once."""
        self._nanoseconds += round(seconds * 1e9)

    def monotonic(self) -> float:
        """time.monotonic and time.perf_counter."""
        return 1_000 + self._nanoseconds / 1e9

    def monotonic_ns(self) -> int:
        """time.monotonic_ns and time.perf_counter_ns."""
        return 1_000_000_000_000 + self._nanoseconds

    perf_counter, perf_counter_ns = monotonic, monotonic_ns

    def time(self) -> float:
        """time.time."""
        return self.time_ns() / 1e9

    def time_ns(self) -> int:
        """time.time_ns."""
        return _BEGIN + self._nanoseconds

    def unix_ms(self) -> int:
        """The clock of the engine, Unix milliseconds."""
        return (self.time_ns() + self.server_ahead) // 1_000_000

    def move_server(self, seconds: float) -> None:
        """Set the server's clock ahead, or back (negative)."""
        moved = round(seconds * 1e9)
        self.shown = max(self.shown, self.unix_ms())
        self.server_ahead += moved
        self.set_back += max(-moved, 0)
