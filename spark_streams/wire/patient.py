"""The way to a server for whoever waits when it is away: connected on first use, and again where that breaks.

How long the first connection is waited for depends on what is known of the address. Where somebody has been connected
to it (a task of a query whose driver has, a query that has a checkpoint), the server is away and comes back: LIMIT.
Otherwise the address may be wrong, and the error must come soon: FIRST_CONNECT_LIMIT.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from spark_streams.errors import RetriesExhaustedError, RStreamError, ServerUnreachableError
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection
from spark_streams.wire.retry import FIRST_CONNECT_LIMIT, LIMIT, Backoff, is_transient

T = TypeVar("T")


class PatientConnection:
    """One connection at a time, made when it is needed. Not for two threads at once. Closes as a context manager.

    what: for whom, in messages; patience: seconds for the first connection, None: few, because the address may be
    wrong; lost: called when a connection is given up; greet: called with each new one, and may refuse it by an error.
    """

    def __init__(
        self,
        address: Address,
        what: str,
        patience: float | None = None,
        lost: Callable[[], None] = lambda: None,
        greet: Callable[[Connection], None] = lambda server: None,
    ) -> None:
        self.address = address
        self.backoff = Backoff(FIRST_CONNECT_LIMIT if patience is None else patience)
        self._what = what
        self._lost = lost
        self._greet = greet
        self._in_doubt = patience is None
        self._server: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def trust(self) -> None:
        """The address is right: somebody has been connected to it."""
        self._in_doubt = False
        self.backoff.limit = LIMIT

    def get(self) -> Connection:
        """The connection. Raises what makes connecting impossible: where the address is in doubt and nobody answers
        ServerUnreachableError, otherwise RetriesExhaustedError after LIMIT."""
        while self._server is None:
            try:
                self._server = self._connected()
            except RStreamError as error:
                if not is_transient(error):
                    raise
                self._wait_for_somebody(error)
        return self._server

    def _connected(self) -> Connection:
        server = Connection(self.address)
        self.trust()
        try:
            self._greet(server)
        except BaseException:
            server.close()
            raise
        return server

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def again(self, error: RStreamError) -> None:
        """Give the connection up, and wait before the next try. Raises the error itself where it does not pass,
        RetriesExhaustedError after LIMIT."""
        if not is_transient(error):
            self.backoff.succeeded()  # it has answered
            raise error
        self.close()
        self._lost()
        self.wait(error)

    def wait(self, why: RStreamError | str) -> None:
        """A pause before the next try. Raises RetriesExhaustedError."""
        self.backoff.wait(f"{self._what} at {self.address}", why.message if isinstance(why, RStreamError) else why)

    def run(self, step: Callable[[Connection], T]) -> T:
        """Run a step, again where the server was lost or could not answer for the moment: it may be repeated.

        Raises what the step raises and does not pass, and what `get` and `again` raise.
        """
        while True:
            server = self.get()
            try:
                result = step(server)
            except RStreamError as error:
                self.again(error)
            else:
                self.backoff.succeeded()
                return result

    def _wait_for_somebody(self, error: RStreamError) -> None:
        if not isinstance(error, ServerUnreachableError):
            self.trust()  # somebody answers there, and cannot serve for the moment
        try:
            self.wait(error)
        except RetriesExhaustedError:
            if not self._in_doubt:
                raise
            self.backoff.succeeded()  # whoever asks again waits anew
            if isinstance(error, ServerUnreachableError):
                error.passes = False  # it was waited for: nobody up the stack is to wait again
            raise error from None
