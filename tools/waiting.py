"""Wait for a condition in a test or a tool, and for the end of a process, also of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import redis

from tools.machine_time import machine_seconds

PATIENCE = 30.0  # machine seconds


def until(
    condition: Callable[[], object],
    message: str,
    within: float = PATIENCE,
    alive: Callable[[], bool] | None = None,
    log: Callable[[], str] | None = None,
    interval: float = 0.02,
) -> None:
    """Wait until the condition is true, and check it each `interval` seconds. A Redis error counts as false.

    Raises AssertionError after `within` machine seconds (tools/machine_time.py), or when `alive` returns False: the
    process that the condition needs has ended. The error is the message and the last 3000 characters of `log`.
    """
    deadline = machine_seconds() + within
    while True:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        ended = alive is not None and not alive()
        if ended or machine_seconds() > deadline:
            text = f"the process has ended: {message}" if ended else message
            raise AssertionError(text if log is None else f"{text}\n{log()[-3000:]}")
        time.sleep(interval)


def stop(process: subprocess.Popen[bytes], seconds: float = 5) -> None:
    """Send SIGTERM and wait for the end; after these seconds send SIGKILL."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def exit_at_sigterm() -> None:
    """From now on, SIGTERM ends this program as an error does: it stops the servers and jobs that it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
