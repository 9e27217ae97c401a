"""A shorter limit for waiting for a server, in a process of a query under test."""

from __future__ import annotations

from spark_streams.connector.wire.connection.retry import Backoff

_wait = Backoff.wait
_limits: list[float] = []  # seconds; empty: the default. Spark uses a Python worker for several queries.


def limit(seconds: float | None) -> None:
    """Set the seconds that this process waits for a server at most. None: the default."""
    _limits[:] = [] if seconds is None else [seconds]
    Backoff.wait = _wait_at_most  # type: ignore[method-assign]


def _wait_at_most(self: Backoff, action: str, where: str, reason: str, lost: bool) -> None:
    self.limit = min([self.limit, *_limits])
    _wait(self, action, where, reason, lost)
