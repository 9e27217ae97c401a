"""A connection for repeated reads: it connects when it is used, and again after it broke."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_streams.connector.errors import RStreamError, ServerUnreachableError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.server import Server

_AT_ONCE = 1.0  # seconds: a failure after a longer time means a silent server, not a connection that broke before


class KeptConnection:
    """A connection that is opened again after it broke. Not safe for two threads at once.

    trouble: receives the error when the server stops answering, and again if the kind of error changes."""

    def __init__(self, address: Address, trouble: Callable[[RStreamError], None]) -> None:
        self.address = address
        self._trouble = trouble
        self._server: Server | None = None
        self.failure: RStreamError | None = None  # of the last request; None: the server answered

    @property
    def answers(self) -> bool:
        """Whether the server answered the last request."""
        return self.failure is None

    def use(self, act: Callable[[Server], None]) -> bool:
        """Call `act` with the connection, and return whether the server answered. If the connection broke since the
        last call, connect again once. `act` must be safe to repeat."""
        for last in (False, True):
            old, began = self._server is not None, time.monotonic()
            try:
                if self._server is None:
                    self._server = connect(self.address)
                self._server.renew_login()
                act(self._server)
            except RStreamError as error:
                self.close()
                is_quick = time.monotonic() - began < _AT_ONCE
                if isinstance(error, ServerUnreachableError) and old and is_quick and not last:
                    continue
                before, self.failure = self.failure, error
                if before is None or before.condition != error.condition:
                    self._trouble(error)
                return False
            self.failure = None
            return True
        return False

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None
