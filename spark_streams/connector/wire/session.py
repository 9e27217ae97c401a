"""A session with a server that may be unavailable: connected on first use, and again after the connection breaks.

    run, execute    steps that may safely run twice: the session repeats them until they succeed
    pipe_of         marked requests, several outstanding: their user knows which were outstanding when the connection
                    broke, calls `wait_before_retry`, and sends them again

The time limit of the first connection depends on what is known of the address. If a connection to it has succeeded (a
task whose driver has connected, a query with a checkpoint), the server is unavailable for a while: `limit` of its
Patience. Otherwise the address may be wrong, and the error must come soon: `first_connection`.

These error replies are temporary, by their codes:

    OOM                      the server's memory is full; readers or trimming free memory
    BUSY                     a script blocks the server
    LOADING                  the server loads its file after a start
    READONLY                 the server is a replica: connect again, the address may lead to the new master
    UNBLOCKED                a blocked read was ended, because the server became a replica: the same
    MASTERDOWN, NOREPLICAS   replication is being restored
    CLUSTERDOWN, TRYAGAIN    slots are being moved or have no owner at the moment
    MOVED, ASK               the key is at another node of the cluster, or is being moved there
    MISCONF                  the server cannot write its file
    EXECABORT                a transaction was refused because one of its commands got one of these

A connection that breaks or is refused is temporary, too, and so is a password file without a password, unless the
address may be wrong. Any other error is final: a retry would give the same.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

from spark_streams.base.units import binary_size
from spark_streams.connector import errors
from spark_streams.connector.wire.address import DEFAULT_PATIENCE, NO_PASSWORD, Address, Patience
from spark_streams.connector.wire.connect import (
    OUTPUT,
    connect,
    find_reply_limit,
    invalidate_topology,
    leave_if_replica,
)
from spark_streams.connector.wire.connection import Connection, ReplyError, Server
from spark_streams.connector.wire.named_errors import FULL, REDIRECTIONS, Memory, node_of_a_cluster, server_full

# -- log lines about unavailable servers: one log per process, however many sessions wait for one server ---------------

# The first wait is logged, then at most one line a minute, and one when the server is available again. If no line was
# logged in this outage, its end is not logged, either.

SAY_EVERY = 60.0  # seconds between two lines
_log = logging.getLogger("spark_streams.wire")


@dataclass
class _Outage:
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

    def ended(self, where: str, lost_only: bool) -> None:
        """Report a successful step that a session has waited for. lost_only: a successful connection, by which only an
        unreachable server is available again."""
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

_CONNECT_AGAIN = frozenset({"READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED"})
_TRANSIENT = _CONNECT_AGAIN | {"OOM", "BUSY", "NOREPLICAS", "TRYAGAIN", "MISCONF", NO_PASSWORD} | REDIRECTIONS


def is_transient(error: Exception) -> bool:
    """Whether an error is temporary: a lost connection, or an error reply (value or exception) with such a code."""
    if isinstance(error, errors.ServerUnreachableError):
        return error.passes
    return isinstance(error, ReplyError | errors.ServerReplyError) and error.code in _TRANSIENT


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
            self.outages.ended(self._where, lost_only=False)
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
            raise errors.RetriesExhaustedError(
                f"{action} at {where} was tried for {now - self._since:.0f} s without success, at last: {reason}; "
                "repair the server and run this again"
            ) from None
        remaining = self.limit - (now - self._since)
        self.outages.report_wait(
            where, f"{action} at {where}: {reason}; trying again for up to {remaining:.0f} s", lost
        )
        self._pause = min(2 * self._pause, self.patience.longest_pause) or self.patience.first_pause
        self.patience.sleep(self._pause * random.uniform(0.5, 1))


# -- requests over one connection, several of them outstanding ---------------------------------------------------------

# Each group of requests ends in an end marker (an ECHO of a random token). `take` returns the reply bytes up to the
# oldest end marker.

_TOGETHER = 1 << 18  # bytes: pieces of less are sent as one


class Pipe:
    """Groups of requests over one connection, which is used for nothing else while replies are outstanding."""

    def __init__(self, server: Connection) -> None:
        self.server = server
        self.end_marker, self._token = server.mark
        self._inbox = bytearray()
        self._searched = 0

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send all pieces; replies that arrive meanwhile are stored. Raises ServerUnreachableError."""
        for piece in pieces if len(pieces) == 1 or sum(map(len, pieces)) > _TOGETHER else [b"".join(pieces)]:
            self.server.send(piece)

    def take(self) -> bytes:
        """Return the reply bytes up to the oldest end marker. Raises ServerUnreachableError."""
        while (end := self._inbox.find(self._token, self._searched)) < 0:
            self._searched = max(len(self._inbox) - len(self._token), 0)
            self._inbox += self.server.receive_some()
        replies = bytes(memoryview(self._inbox)[:end])
        del self._inbox[: end + len(self._token)]
        self._searched = 0
        return replies


# -- the session -------------------------------------------------------------------------------------------------------

T = TypeVar("T")


class Session:
    """One connection at a time, opened on demand. Not for two threads at once. Usable as a context manager.

    purpose: what the session is for, in messages. is_known: a connection to the address has succeeded before. greet:
    called with each new connection; it may refuse the connection by an error.
    """

    def __init__(
        self,
        address: Address,
        purpose: str = "the stream server",
        is_known: bool = False,
        greet: Callable[[Server], None] = lambda server: None,
    ) -> None:
        self.address = address
        patience = address.patience
        self.backoff = Backoff(patience.limit if is_known else patience.first_connection, patience)
        self._purpose = purpose
        self._greet = greet
        self._in_doubt = not is_known
        self._server: Server | None = None
        self._pipes: dict[Connection, Pipe] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def trust(self) -> None:
        """Trust the address, because a connection to it has succeeded."""
        self._in_doubt = False
        self.backoff.limit = self.address.patience.limit

    def get(self) -> Server:
        """Return the connection; connect if there is none.

        Raises errors that retries cannot remove. If no server answers at an untrusted address, raises
        ServerUnreachableError; otherwise RetriesExhaustedError after the limit.
        """
        while self._server is None:
            try:
                self._server = self._connected()
            except errors.RStreamError as error:
                if not is_transient(error) or (self._in_doubt and isinstance(error, errors.LoginError)):
                    raise
                self._wait_for_somebody(error)
        return self._server

    def connection_for(self, key: str | bytes) -> Connection:
        """Return the connection to the server of this key. Raises as `get` does, and as Server.connection_for does."""
        return self.get().connection_for(key)

    def pipe_of(self, key: str | bytes) -> Pipe:
        """Return a pipe over that connection. Raises as `connection_for` does."""
        server = self.get().connection_for(key)
        pipe = self._pipes.get(server)
        if pipe is None:
            pipe = self._pipes[server] = Pipe(server)
        return pipe

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._pipes.clear()

    def renew_login(self) -> None:
        """Use renewed credentials; called now and then in long sessions, when no reply is outstanding."""
        if self._server is not None:
            try:
                self._server.renew_login()
            except errors.RStreamError:
                self.close()  # the next step connects, or reports the error

    # -- retries -------------------------------------------------------------------------------------------------

    def run(self, step: Callable[[Server], T]) -> T:
        """Run a step until it succeeds; it must be safe to repeat after a lost connection or a temporary error.

        Each call has the full time limit. Raises errors of the step that are not transient, and those of `get` and
        `wait_before_retry`.
        """
        result = self.run_part(step)
        self.backoff.succeeded()
        return result

    def run_part(self, step: Callable[[Server], T]) -> T:
        """As `run`, for a part of a larger step: its success does not restart the time limit.

        The step may also raise a ReplyError that it has read.
        """
        while True:
            server = self.get()
            try:
                return step(server)
            except (errors.RStreamError, ReplyError) as error:
                self.wait_before_retry(error)

    def wait_before_retry(self, error: errors.RStreamError | ReplyError) -> None:
        """Wait before a retry on a new connection. Raises the error itself if it is not transient,
        RetriesExhaustedError after the limit.

        After a ReplyError the connection is intact, because its reader has taken all replies. It stays open unless
        another one may lead to a server that can run the command. After another error, replies may be unread.
        """
        if not is_transient(error):
            self.backoff.succeeded()  # the server has answered
            raise error
        if isinstance(error, ReplyError) and error.code in REDIRECTIONS and not self.address.is_cluster:
            raise node_of_a_cluster(self.address)
        invalidate_topology(self.address)
        leave_if_replica(self.address, error)
        if not isinstance(error, ReplyError) or wants_new_connection(error):
            self.close()
        self.wait(error)

    def wait(self, why: errors.RStreamError | ReplyError) -> None:
        """Pause before a retry. Raises RetriesExhaustedError."""
        is_lost = isinstance(why, errors.ServerUnreachableError)
        try:
            self.backoff.wait(self._purpose, str(self.address), self._reason(why), is_lost)
        except errors.RetriesExhaustedError as error:
            if is_lost and (limit := find_reply_limit(self.address)):
                closes = f"It closes connections with {binary_size(limit)} of unread replies: raise {OUTPUT} normal"
                raise errors.RetriesExhaustedError(f"{error.message}. {closes}") from None
            raise

    def _reason(self, why: errors.RStreamError | ReplyError) -> str:
        if isinstance(why, errors.RStreamError):
            return why.message
        if why.code == FULL:
            memory = Memory() if self._server is None else self._server.memory()
            return server_full("the server refused a write", memory).message
        return str(why)

    def _connected(self) -> Server:
        server = connect(self.address, repeats=True)
        self.trust()
        self.backoff.outages.ended(str(self.address), lost_only=True)
        try:
            self._greet(server)
        except BaseException:
            server.close()
            raise
        return server

    def _wait_for_somebody(self, error: errors.RStreamError) -> None:
        if not isinstance(error, errors.ServerUnreachableError):
            self.trust()  # a server answers there, and is temporarily unable to serve
        try:
            self.wait(error)
        except errors.RetriesExhaustedError:
            if not self._in_doubt:
                raise
            self.backoff.reset()
            if isinstance(error, errors.ServerUnreachableError):
                error.passes = False  # the wait is over: no caller waits again
            raise error from None
