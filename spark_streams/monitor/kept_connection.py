"""A connection of whoever looks at a server again and again: made when it is needed, and again where it broke."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_streams.errors import RStreamError, ServerUnreachableError
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.server import Server

_AT_ONCE = 1.0  # seconds: what took longer was no connection that had broken before, but a server that is silent


class KeptConnection:
    """One connection at a time. Not for two threads at once. trouble: is told why a server does not answer, when that
    begins, and where it becomes another reason."""

    def __init__(self, address: Address, trouble: Callable[[RStreamError], None]) -> None:
        self.address = address
        self._trouble = trouble
        self._server: Server | None = None
        self.failure: RStreamError | None = None  # why the server did not answer when it was last asked

    @property
    def answers(self) -> bool:
        """Whether the server answered when it was last asked."""
        return self.failure is None

    def use(self, act: Callable[[Server], None]) -> bool:
        """Do something on it; whether the server took it. A connection that broke since the last time is made again,
        once. `act` must be safe to repeat."""
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
        """Close it, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None
