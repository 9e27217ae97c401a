"""The way to a server for whoever waits when it is away: connected on first use, and again where that breaks.

    run, execute    what may safely be done twice: the session repeats it until it succeeds
    pipe_of         marked requests, several under way: their user knows what was outstanding when the connection broke,
                    calls `again`, and sends it once more

How long the first connection is waited for depends on what is known of the address. Where somebody has been connected
to it (a task of a query whose driver has, a query that has a checkpoint), the server is away and comes back: `limit` of
its Patience. Otherwise the address may be wrong, and the error must come soon: `first_connection`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

from spark_streams.errors import RetriesExhaustedError, RStreamError, ServerUnreachableError
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect, mistrust
from spark_streams.wire.connection.connection import Argument, Connection, Reply, ReplyError
from spark_streams.wire.connection.named_errors import REDIRECTIONS, node_of_a_cluster
from spark_streams.wire.connection.pipe import Pipe
from spark_streams.wire.connection.retry import Backoff, is_transient, wants_new_connection
from spark_streams.wire.connection.server import Server

T = TypeVar("T")


class Session:
    """One connection at a time, made when it is needed. Not for two threads at once. Closes as a context manager.

    what: for whom, in messages; is_known: somebody has been connected to the address, so it is right; greet:
    called with each new one, and may refuse it by an error.
    """

    def __init__(
        self,
        address: Address,
        what: str = "the stream server",
        is_known: bool = False,
        greet: Callable[[Server], None] = lambda server: None,
    ) -> None:
        self.address = address
        patience = address.patience
        self.backoff = Backoff(patience.limit if is_known else patience.first_connection, patience)
        self._what = what
        self._greet = greet
        self._in_doubt = not is_known
        self._server: Server | None = None
        self._pipes: dict[Connection, Pipe] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def trust(self) -> None:
        """The address is right: somebody has been connected to it."""
        self._in_doubt = False
        self.backoff.limit = self.address.patience.limit

    def get(self) -> Server:
        """The connection. Raises what makes connecting impossible: where the address is in doubt and nobody answers
        ServerUnreachableError, otherwise RetriesExhaustedError after the limit."""
        while self._server is None:
            try:
                self._server = self._connected()
            except RStreamError as error:
                if not is_transient(error):
                    raise
                self._wait_for_somebody(error)
        return self._server

    def of(self, key: str | bytes) -> Connection:
        """The connection to the server that has this key. Raises as `get` does, and what Server.of raises."""
        return self.get().of(key)

    def pipe_of(self, key: str | bytes) -> Pipe:
        """A pipe over that connection. Raises as `of` does."""
        server = self.get().of(key)
        pipe = self._pipes.get(server)
        if pipe is None:
            pipe = self._pipes[server] = Pipe(server)
        return pipe

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._pipes.clear()

    def rest(self) -> None:
        """To be called now and then by whoever keeps a session for long, when no reply is on its way: a login that has
        been renewed is taken."""
        if self._server is not None:
            try:
                self._server.renew_login()
            except RStreamError:
                self.close()  # the next step connects, or says what is wrong

    # -- trying again -------------------------------------------------------------------------------------------

    def run(self, step: Callable[[Server], T]) -> T:
        """Run a step until it succeeds: again where the server was lost or could not answer for the moment, so it must
        be safe to repeat. Whoever waits later waits anew.

        Raises what the step raises and is not transient, and what `get` and `again` raise.
        """
        result = self.run_part(step)
        self.backoff.succeeded()
        return result

    def run_part(self, step: Callable[[Server], T]) -> T:
        """The same for a part of something larger: that it succeeds is no success yet, so the limit goes on counting
        where the other parts keep failing. The step may also raise a ReplyError that it has read."""
        while True:
            server = self.get()
            try:
                return step(server)
            except (RStreamError, ReplyError) as error:
                self.again(error)

    def execute(self, *arguments: Argument) -> Reply:
        """One command that may safely be run twice."""
        return self.run(lambda server: server.execute(*arguments))

    def again(self, error: RStreamError | ReplyError) -> None:
        """Wait before the next try, on a new connection. Raises the error itself where it is not transient,
        RetriesExhaustedError after the limit.

        Behind a ReplyError the connection is whole, because its reader has taken all replies: it is kept unless another
        may lead to a server that can do more. An error that was raised may have left replies behind.
        """
        if not is_transient(error):
            self.backoff.succeeded()  # it has answered
            raise error
        if isinstance(error, ReplyError) and error.code in REDIRECTIONS and not self.address.is_cluster:
            raise node_of_a_cluster(self.address)
        mistrust(self.address)
        if not isinstance(error, ReplyError) or wants_new_connection(error):
            self.close()
        self.wait(error)

    def wait(self, why: RStreamError | ReplyError) -> None:
        """A pause before the next try. Raises RetriesExhaustedError."""
        reason = why.message if isinstance(why, RStreamError) else str(why)
        self.backoff.wait(self._what, str(self.address), reason, isinstance(why, ServerUnreachableError))

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
            self.trust()  # somebody answers there, and cannot serve for the moment
        try:
            self.wait(error)
        except RetriesExhaustedError:
            if not self._in_doubt:
                raise
            self.backoff.given_up()
            if isinstance(error, ServerUnreachableError):
                error.passes = False  # it was waited for: nobody up the stack is to wait again
            raise error from None
