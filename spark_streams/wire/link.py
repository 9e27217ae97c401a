"""A pipe that is made on first use, and made again when it breaks or leads to a server that cannot serve."""

from __future__ import annotations

from spark_streams.errors import RStreamError, ServerUnreachableError
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Argument, Connection, Reply
from spark_streams.wire.pipe import Pipe
from spark_streams.wire.retry import FIRST_CONNECT_LIMIT, LIMIT, Backoff, is_passing


class Link:
    """One task's way to the server. Closes as a context manager. What was outstanding when it broke is the caller's."""

    def __init__(self, address: Address, patience: float | None = None) -> None:
        """patience: seconds for the first connection; None: few, because the address may be wrong."""
        self.address = address
        self.backoff = Backoff(FIRST_CONNECT_LIMIT if patience is None else patience)
        self._pipe: Pipe | None = None

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._pipe is not None:
            self._pipe.server.close()
            self._pipe = None

    @property
    def pipe(self) -> Pipe:
        """The pipe. Raises what made connecting impossible, after RetriesExhaustedError's patience."""
        while self._pipe is None:
            try:
                self._pipe = Pipe(Connection(self.address))
            except RStreamError as error:
                if not is_passing(error):
                    raise
                if not isinstance(error, ServerUnreachableError):
                    self.backoff.limit = LIMIT  # somebody answers there
                self.wait(error)
            else:
                self.backoff.limit = LIMIT
        return self._pipe

    @property
    def server(self) -> Connection:
        """The connection of the pipe, for errors, and for commands while no reply is outstanding."""
        return self.pipe.server

    def again(self, error: RStreamError) -> None:
        """Wait, and connect anew at the next use. Raises the error itself where it does not pass by itself."""
        self.close()
        if not is_passing(error):
            raise error
        self.wait(error)

    def wait(self, why: RStreamError | str) -> None:
        """A pause before the next try. Raises RetriesExhaustedError."""
        self.backoff.wait(f"the stream server at {self.address}", why.message if isinstance(why, RStreamError) else why)

    def execute(self, *arguments: Argument) -> Reply:
        """One command that may safely be run twice, tried again where it meets a passing state."""
        while True:
            try:
                reply = self.server.execute(*arguments)
            except RStreamError as error:
                self.again(error)
            else:
                self.backoff.succeeded()
                return reply
