"""Wait for a condition in a test or a tool."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import redis

PATIENCE = 30.0  # seconds: enough for every condition, on a busy machine, too


def until(
    condition: Callable[[], object], message: str, within: float = PATIENCE, alive: Callable[[], bool] | None = None
) -> None:
    """Wait until the condition is true; a Redis error counts as false.

    Raises AssertionError after `within` seconds, or when `alive` returns False: the process that the condition needs
    has ended.
    """
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        assert alive is None or alive(), f"the process has ended: {message}"
        assert time.monotonic() < deadline, message
        time.sleep(0.02)
