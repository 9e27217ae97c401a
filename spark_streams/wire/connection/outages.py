"""What the log says of servers that are waited for: one voice a process, however many sessions wait for one server.

A line when somebody begins to wait, the next one a minute later at the soonest, and one when the server is back: where
that was so soon that nobody has said it is away, nobody says that it is back, either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

SAY_EVERY = 60.0  # seconds
_log = logging.getLogger("spark_streams.wire")


@dataclass
class _Outage:
    """since: when it began; None: the server is back. lost: it cannot be reached; else it answers, and cannot do what
    it is asked for (OOM, LOADING …). said: when the log was last told that somebody waits; told: in this outage."""

    since: float | None = None
    lost: bool = False
    said: float | None = None
    told: bool = False


class Outages:
    """Those of each server, by its address as it is shown. For any thread. clock: a monotonic clock, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Outage] = {}

    def waits(self, where: str, line: str, lost: bool) -> None:
        """Somebody waits for this server, and would say so by this line. lost: it cannot be reached."""
        with self._lock:
            now = self._clock()
            outage = self._known.setdefault(where, _Outage())
            if outage.since is None:
                outage.since, outage.told = now, False
            outage.lost = lost
            if outage.said is not None and now - outage.said < SAY_EVERY:
                return
            outage.said, outage.told = now, True
        _log.warning("%s", line)

    def connected(self, where: str) -> None:
        """Somebody has been connected: the server is no longer away."""
        self._end(where, lost_only=True)

    def succeeded(self, where: str) -> None:
        """The server has done what somebody has waited for."""
        self._end(where, lost_only=False)

    def _end(self, where: str, lost_only: bool) -> None:
        if where not in self._known:
            return
        with self._lock:
            outage = self._known[where]
            if outage.since is None or (lost_only and not outage.lost):
                return
            seconds, outage.since = self._clock() - outage.since, None
            if not outage.told:
                return
        _log.warning("the stream server at %s is back after %.0f s", where, seconds)


OUTAGES = Outages()
