"""How long a process of a query under test waits for a server: less than the product does, where the test cannot."""

from __future__ import annotations

from spark_streams.wire.connection.retry import Backoff

_wait = Backoff.wait
_most: list[float] = []  # seconds; empty: as the product does. Python workers go from query to query.


def limit(seconds: float | None) -> None:
    """From now on this process tries for so many seconds at the most."""
    _most[:] = [] if seconds is None else [seconds]
    Backoff.wait = _hasty  # type: ignore[method-assign]


def _hasty(self: Backoff, action: str, where: str, reason: str, lost: bool) -> None:
    self.limit = min([self.limit, *_most])
    _wait(self, action, where, reason, lost)
