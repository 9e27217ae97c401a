"""Open streams of events: how many a user and an address may have, so that nobody takes all connections."""

from __future__ import annotations

from collections import Counter

from spark_streams.operations.console.bounds import EVENTS_PER_ADDRESS, EVENTS_PER_LOGIN
from spark_streams.operations.console.login.attempts import network_of

Key = tuple[str, str]


class Watchers:
    """The streams of events that are open."""

    def __init__(self) -> None:
        self._open: Counter[Key] = Counter()

    def begin(self, user: str | None, address: str) -> bool:
        """Count a stream, and return whether it may be opened. user: None on a console without logins."""
        limits = _limits(user, address)
        if any(self._open[key] >= limit for key, limit in limits.items()):
            return False
        self._open.update(limits.keys())
        return True

    def end(self, user: str | None, address: str) -> None:
        """A stream has ended for which `begin` was true."""
        for key in _limits(user, address):
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


def _limits(user: str | None, address: str) -> dict[Key, int]:
    of_user = {} if user is None else {("user", user): EVENTS_PER_LOGIN}
    return {**of_user, ("address", network_of(address)): EVENTS_PER_ADDRESS}
