"""Which errors are retried, for how long, and with which pauses. Pure, except for the clock and sleep passed in.

Temporary error replies, by their codes:

    OOM                      the server's memory is full; readers or trimming free memory
    BUSY                     a script blocks the server
    LOADING                  the server loads its file after a start
    READONLY                 the server is a replica: connect again, the address may lead to the new master
    MASTERDOWN, NOREPLICAS   replication is being restored
    CLUSTERDOWN, TRYAGAIN    slots are being moved or have no owner at the moment
    MOVED, ASK               the key is at another node of the cluster, or is being moved there
    MISCONF                  the server cannot write its file
    EXECABORT                a transaction was refused because one of its commands got one of these

A connection that breaks or is refused is temporary, too. Any other error is final: a retry would give the same.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_streams.connector.errors import RetriesExhaustedError, ServerReplyError, ServerUnreachableError
from spark_streams.connector.wire.address.address import DEFAULT_PATIENCE, Patience
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.named_errors import REDIRECTIONS

# -- log lines about unavailable servers: one log per process, however many sessions wait for one server ---------------

# The first wait is logged, then at most one line a minute, and one when the server is available again. If no line was
# logged in this outage, its end is not logged, either.

SAY_EVERY = 60.0  # seconds between two lines
_log = logging.getLogger("spark_streams.wire")


@dataclass
class _Outage:
    """A server that is waited for."""

    since: float | None = None  # begin of the outage; None: the server is available
    lost: bool = False  # it cannot be reached; else it answers with a temporary error (OOM, LOADING …)
    logged_at: float | None = None  # time of the last line
    reported: bool = False  # a line was logged in this outage


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

# -- what is retried, and for how long ---------------------------------------------------------------------------------

_TRANSIENT = frozenset(
    {"OOM", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MISCONF"}
    | REDIRECTIONS
)
_CONNECT_AGAIN = frozenset({"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED"})


def is_transient(error: Exception) -> bool:
    """Whether an error is temporary: a lost connection, or an error reply (value or exception) with such a code."""
    if isinstance(error, ServerUnreachableError):
        return error.passes
    return isinstance(error, ReplyError | ServerReplyError) and error.code in _TRANSIENT


def wants_new_connection(reply: ReplyError) -> bool:
    """Whether another connection may lead to a server that can run the command."""
    return reply.code in _CONNECT_AGAIN


@dataclass
class Backoff:
    """Growing pauses with random jitter, until `limit` seconds have passed without success."""

    limit: float
    patience: Patience = DEFAULT_PATIENCE
    clock: Callable[[], float] = time.monotonic
    outages: Outages = OUTAGES
    _since: float | None = field(default=None, init=False)
    _pause: float = field(default=0.0, init=False)  # the last pause; 0 before the first
    _where: str = field(default="", init=False)  # the server that is waited for

    def succeeded(self) -> None:
        """Reset after the server has run the requested command."""
        if self._since is not None:
            self.outages.succeeded(self._where)
        self.reset()

    def reset(self) -> None:
        """Restart the time limit, although the server has not succeeded: a later caller waits for the full limit."""
        self._since, self._pause = None, 0.0

    def wait(self, action: str, where: str, reason: str, lost: bool) -> None:
        """Wait before a retry. action: what failed at the server `where`, because of `reason`. lost: the server cannot
        be reached. Raises RetriesExhaustedError.
        """
        now = self.clock()
        if self._since is None:
            self._since = now
        self._where = where
        if now - self._since >= self.limit:
            # The message has the text of the last error, which callers handle at this moment.
            raise RetriesExhaustedError(
                f"{action} at {where} was tried for {now - self._since:.0f} s without success, at last: {reason}; "
                "repair the server and run this again"
            ) from None
        remaining = self.limit - (now - self._since)
        self.outages.report_wait(
            where, f"{action} at {where}: {reason}; trying again for up to {remaining:.0f} s", lost
        )
        self._pause = min(2 * self._pause, self.patience.longest_pause) or self.patience.first_pause
        self.patience.sleep(self._pause * random.uniform(0.5, 1))
