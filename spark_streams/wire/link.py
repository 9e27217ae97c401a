"""A patient connection whose user sends marked requests over a pipe, and knows itself what was outstanding when it
broke."""

from __future__ import annotations

from spark_streams.wire.address import Address
from spark_streams.wire.connection import Argument, Connection, Reply
from spark_streams.wire.patient import PatientConnection
from spark_streams.wire.pipe import Pipe


class Link(PatientConnection):
    """One task's way to the server."""

    def __init__(self, address: Address, patience: float | None = None) -> None:
        """patience: seconds for the first connection; None: few, because the address may be wrong."""
        super().__init__(address, "the stream server", patience)
        self._pipe: Pipe | None = None

    @property
    def pipe(self) -> Pipe:
        """The pipe over the connection that there is. Raises as `get` does."""
        server = self.get()
        if self._pipe is None or self._pipe.server is not server:
            self._pipe = Pipe(server)
        return self._pipe

    @property
    def server(self) -> Connection:
        """The connection, for errors, and for commands while no reply is outstanding."""
        return self.get()

    def execute(self, *arguments: Argument) -> Reply:
        """One command that may safely be run twice, tried again where it meets a passing state."""
        return self.run(lambda server: server.execute(*arguments))
