"""What is worth trying again, how long, and how patiently. Pure, but for the clock and the sleep that are passed in.

Error replies that pass by themselves, by their codes:

    OOM                      the server's memory is full; readers or trimming make room
    BUSY                     a script holds the server up
    LOADING                  it reads its file after a start
    READONLY                 we talk to a replica: connect again, the address may lead to the new master
    MASTERDOWN, NOREPLICAS   replication is being put together again
    CLUSTERDOWN, TRYAGAIN    slots are being moved or have no owner for the moment
    MISCONF                  it cannot write its file
    EXECABORT                a transaction was given up because one of its commands met one of these

and a connection that breaks or is refused. Everything else is an answer: asking again would give the same.

Whoever waits says so in the log when it begins, and then once a minute.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_streams.errors import RetriesExhaustedError, ServerReplyError, ServerUnreachableError
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.patience import DEFAULT_PATIENCE, Patience

SAY_EVERY = 60.0  # seconds
_TRANSIENT = frozenset(
    {"OOM", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MISCONF"}
)
_CONNECT_AGAIN = frozenset({"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"})
_log = logging.getLogger("spark_streams.wire")


def is_transient(error: Exception) -> bool:
    """Whether an error passes by itself: a lost connection, or an error reply (a value, or raised) with such a code."""
    if isinstance(error, ServerUnreachableError):
        return error.passes
    return isinstance(error, ReplyError | ServerReplyError) and error.code in _TRANSIENT


def wants_new_connection(reply: ReplyError) -> bool:
    """Whether another connection may lead to a server that can do what this one cannot."""
    return reply.code in _CONNECT_AGAIN


@dataclass
class Backoff:
    """Pauses that grow, by some chance, until `limit` seconds have passed without success."""

    limit: float
    patience: Patience = DEFAULT_PATIENCE
    clock: Callable[[], float] = time.monotonic
    _since: float | None = field(default=None, init=False)
    _pause: float = field(default=0.0, init=False)  # the last one; 0 before the first
    _said: float | None = field(default=None, init=False)  # when the log was last told

    def succeeded(self) -> None:
        """Start anew."""
        self._since, self._pause = None, 0.0

    def wait(self, what: str, why: str) -> None:
        """Wait before trying `what` again, which failed because of `why`. Raises RetriesExhaustedError."""
        now = self.clock()
        if self._since is None:
            self._since = now
        if now - self._since >= self.limit:
            raise RetriesExhaustedError(
                f"{what} was tried for {now - self._since:.0f} s without success, at last: {why}; "
                "mend the server and run this again"
            )
        if self._said is None or now - self._said >= SAY_EVERY:
            self._said = now
            _log.warning("%s: %s; trying again for up to %.0f s", what, why, self.limit - (now - self._since))
        self._pause = min(2 * self._pause, self.patience.longest_pause) or self.patience.first_pause
        self.patience.sleep(self._pause * random.uniform(0.5, 1))
