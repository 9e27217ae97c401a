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

wire.connection.outages writes the log lines.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_streams.connector.errors import RetriesExhaustedError, ServerReplyError, ServerUnreachableError
from spark_streams.connector.wire.address.patience import DEFAULT_PATIENCE, Patience
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.named_errors import REDIRECTIONS
from spark_streams.connector.wire.connection.outages import OUTAGES, Outages

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
