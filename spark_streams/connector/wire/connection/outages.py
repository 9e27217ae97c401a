"""Log lines about unavailable servers: one log per process, however many sessions wait for one server.

The first wait is logged, then at most one line a minute, and one when the server is available again. If no line was
logged in this outage, its end is not logged, either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

SAY_EVERY = 60.0  # seconds between two lines
_log = logging.getLogger("spark_streams.connector.wire")


@dataclass
class _Outage:
    """since: begin of the outage; None: the server is available. lost: it cannot be reached; else it answers with a
    temporary error (OOM, LOADING …). logged_at: time of the last line. reported: a line was logged in this outage.
    """

    since: float | None = None
    lost: bool = False
    logged_at: float | None = None
    reported: bool = False


class Outages:
    """The outages of each server, by its shown address. For any thread. clock: a monotonic clock, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}

    def report_wait(self, where: str, line: str, lost: bool) -> None:
        """Report a session that waits for this server, with its log line. lost: the server cannot be reached."""
        with self._lock:
            now = self._clock()
            outage = self._outages.setdefault(where, _Outage())
            if outage.since is None:
                outage.since, outage.reported = now, False
            outage.lost = lost
            if outage.logged_at is not None and now - outage.logged_at < SAY_EVERY:
                return
            outage.logged_at, outage.reported = now, True
        _log.warning("%s", line)

    def connected(self, where: str) -> None:
        """Report a successful connection: an unreachable server is available again."""
        self._end(where, lost_only=True)

    def succeeded(self, where: str) -> None:
        """Report a successful step that a session has waited for."""
        self._end(where, lost_only=False)

    def _end(self, where: str, lost_only: bool) -> None:
        if where not in self._outages:
            return
        with self._lock:
            outage = self._outages[where]
            if outage.since is None or (lost_only and not outage.lost):
                return
            seconds, outage.since = self._clock() - outage.since, None
            if not outage.reported:
                return
        _log.warning("the stream server at %s is back after %.0f s", where, seconds)


OUTAGES = Outages()
