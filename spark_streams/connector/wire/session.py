"""A session with a server that may be unavailable: connected on first use, and again after the connection breaks.

    run, execute    steps that may safely run twice: the session repeats them until they succeed
    pipe_of         marked requests, several outstanding: their user knows which were outstanding when the connection
                    broke, calls `wait_before_retry`, and sends them again

The time limit of the first connection depends on what is known of the address. If a connection to it has succeeded (a
task whose driver has connected, a query with a checkpoint), the server is unavailable for a while: `limit` of its
Patience. Otherwise the address may be wrong, and the error must come soon: `first_connection`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

from spark_streams.connector.errors import RetriesExhaustedError, RStreamError, ServerUnreachableError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect, invalidate_topology, leave_if_replica
from spark_streams.connector.wire.connection.connection import Argument, Connection, Reply, ReplyError
from spark_streams.connector.wire.connection.named_errors import (
    FULL,
    REDIRECTIONS,
    Memory,
    node_of_a_cluster,
    server_full,
)
from spark_streams.connector.wire.connection.retry import Backoff, is_transient, wants_new_connection
from spark_streams.connector.wire.connection.server import Pipe, Server

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
            except RStreamError as error:
                if not is_transient(error):
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
            except RStreamError:
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
            except (RStreamError, ReplyError) as error:
                self.wait_before_retry(error)

    def execute(self, *arguments: Argument) -> Reply:
        """Run one command that may safely run twice."""
        return self.run(lambda server: server.execute(*arguments))

    def wait_before_retry(self, error: RStreamError | ReplyError) -> None:
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

    def wait(self, why: RStreamError | ReplyError) -> None:
        """Pause before a retry. Raises RetriesExhaustedError."""
        self.backoff.wait(self._purpose, str(self.address), self._reason(why), isinstance(why, ServerUnreachableError))

    def _reason(self, why: RStreamError | ReplyError) -> str:
        if isinstance(why, RStreamError):
            return why.message
        if why.code == FULL:
            memory = Memory() if self._server is None else self._server.memory()
            return server_full("the server refused a write", memory).message
        return str(why)

    def _connected(self) -> Server:
        server = connect(self.address, repeats=True)
        self.trust()
        self.backoff.outages.connected(str(self.address))
        try:
            self._greet(server)
        except BaseException:
            server.close()
            raise
        return server

    def _wait_for_somebody(self, error: RStreamError) -> None:
        if not isinstance(error, ServerUnreachableError):
            self.trust()  # a server answers there, and is temporarily unable to serve
        try:
            self.wait(error)
        except RetriesExhaustedError:
            if not self._in_doubt:
                raise
            self.backoff.reset()
            if isinstance(error, ServerUnreachableError):
                error.passes = False  # the wait is over: no caller waits again
            raise error from None
