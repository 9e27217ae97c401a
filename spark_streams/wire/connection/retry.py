"""What is worth trying again, how long, and how patiently. Pure, but for the clock and the sleep that are passed in.

Error replies that pass by themselves, by their codes:

    OOM                      the server's memory is full; readers or trimming make room
    BUSY                     a script holds the server up
    LOADING                  it reads its file after a start
    READONLY                 we talk to a replica: connect again, the address may lead to the new master
    MASTERDOWN, NOREPLICAS   replication is being put together again
    CLUSTERDOWN, TRYAGAIN    slots are being moved or have no owner for the moment
    MOVED, ASK               the key is at another node of the cluster, or on its way there
    MISCONF                  it cannot write its file
    EXECABORT                a transaction was given up because one of its commands met one of these

and a connection that breaks or is refused. Everything else is an answer: asking again would give the same.

What the log says of it: wire.connection.outages.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_streams.errors import RetriesExhaustedError, ServerReplyError, ServerUnreachableError
from spark_streams.wire.address.patience import DEFAULT_PATIENCE, Patience
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.named_errors import REDIRECTIONS
from spark_streams.wire.connection.outages import OUTAGES, Outages

_TRANSIENT = frozenset(
    {"OOM", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "TRYAGAIN", "MISCONF"}
    | REDIRECTIONS
)
_CONNECT_AGAIN = frozenset({"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED"})


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
    outages: Outages = OUTAGES
    _since: float | None = field(default=None, init=False)
    _pause: float = field(default=0.0, init=False)  # the last one; 0 before the first
    _where: str = field(default="", init=False)  # the server that is waited for

    def succeeded(self) -> None:
        """Start anew: the server has done what was asked for."""
        if self._since is not None:
            self.outages.succeeded(self._where)
        self.given_up()

    def given_up(self) -> None:
        """Start anew, though the server is as it was: whoever asks again waits anew."""
        self._since, self._pause = None, 0.0

    def wait(self, what: str, where: str, why: str, lost: bool) -> None:
        """Wait before trying `what` again, which failed at the server `where` because of `why`. lost: the server cannot
        be reached. Raises RetriesExhaustedError."""
        now = self.clock()
        if self._since is None:
            self._since = now
        self._where = where
        if now - self._since >= self.limit:
            raise RetriesExhaustedError(
                f"{what} at {where} was tried for {now - self._since:.0f} s without success, at last: {why}; "
                "mend the server and run this again"
            )
        left = self.limit - (now - self._since)
        self.outages.waits(where, f"{what} at {where}: {why}; trying again for up to {left:.0f} s", lost)
        self._pause = min(2 * self._pause, self.patience.longest_pause) or self.patience.first_pause
        self.patience.sleep(self._pause * random.uniform(0.5, 1))
