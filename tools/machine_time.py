"""Limits of time for a test that is stuck, not for a machine that is slow.

`machine_seconds` is a clock that goes slower while the machine has more to do than it has processors: with six programs
that want to run on two processors it advances by a third of a second each second. So a limit on this clock is the same
amount of work on a quiet machine and on a busy one. A test that waits forever still reaches it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time

SLOWEST = 0.05  # a machine with more load than this still ends a stuck test


class MachineClock:
    """A clock whose speed is the share of a processor that each program of this machine gets.

    The load is the system's average of the last minute, so the clock needs no thread: a call may be a minute after the
    one before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = time.monotonic()
        self._seconds = 0.0

    def __call__(self) -> float:
        """Return seconds since an arbitrary moment. They never decrease."""
        with self._lock:
            now = time.monotonic()
            self._seconds += (now - self._seen) * share()
            self._seen = now
            return self._seconds


def share() -> float:
    """Return the share of a processor that a program gets now: 1 on a quiet machine."""
    processors = os.cpu_count() or 1
    with contextlib.suppress(OSError):  # the system does not tell its load
        return max(SLOWEST, min(1.0, processors / max(os.getloadavg()[0], 1e-9)))
    return 1.0


machine_seconds = MachineClock()


def wait_for_end(process: subprocess.Popen[bytes], within: float) -> int:
    """Wait for the end of a process, and return its exit code. Raises TimeoutExpired after `within` machine seconds."""
    deadline = machine_seconds() + within
    while True:
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            if machine_seconds() > deadline:
                raise subprocess.TimeoutExpired(process.args, within) from None
