"""The driver's connection: made on first use, and again where it breaks, as long as that may pass."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from spark_streams.errors import RStreamError
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection
from spark_streams.wire.retry import Backoff, is_passing

_log = logging.getLogger("spark_streams.wire")

T = TypeVar("T")


class PatientConnection:
    """what: for whom, in messages; lost: called when the server has to be asked again."""

    def __init__(self, address: Address, what: str, lost: Callable[[], None]) -> None:
        self._address = address
        self._what = what
        self._lost = lost
        self._server: Connection | None = None
        self._was_connected = False

    def get(self) -> Connection:
        """The connection. Raises ServerUnreachableError."""
        if self._server is None:
            self._server = Connection(self._address)
            self._was_connected = True
        return self._server

    def close(self) -> None:
        """Close it, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def run(self, step: Callable[[Connection], T]) -> T:
        """Run a step, again where the server was lost or could not answer for the moment: it may be repeated.

        Raises RetriesExhaustedError after wire.retry.LIMIT, ServerUnreachableError at once where nothing ever answered.
        """
        backoff = Backoff()
        while True:
            try:
                return step(self.get())
            except RStreamError as error:
                if not self._was_connected or not is_passing(error):
                    raise
                self.close()
                self._lost()
                _log.warning("%s; trying again", error.message)
                backoff.wait(f"{self._what} at {self._address}", error.message)
