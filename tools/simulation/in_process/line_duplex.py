"""Duplex (wire.connection.sockets) over a line: what is sent has run before `send` returns."""

from __future__ import annotations

from spark_streams.connector.wire.connection.sockets import Lost, TooMuchError
from tools.simulation.in_process.core import Core, Line


class LineDuplex:
    """One connection of the product. timeout: seconds of silence after which it is lost."""

    def __init__(self, core: Core, line: Line, lost: Lost) -> None:
        self._core, self._line, self._lost = core, line, lost
        self.timeout: float | None = 5.0
        self.received = 0
        self.max_kept: int | None = None

    def send(self, data: bytes | memoryview) -> None:
        """Send all of the data. Raises TooMuchError if more than `max_kept` bytes arrive meanwhile."""
        try:
            self._line.send(bytes(data))
        except OSError as error:
            raise self._lost(error) from None
        if self.max_kept is not None and len(self._line.inbox) > self.max_kept:
            raise TooMuchError

    @property
    def has_input(self) -> bool:
        """Whether bytes have arrived."""
        return bool(self._line.inbox)

    def receive(self) -> memoryview:
        """Return available bytes, at least one."""
        self._wait()
        data = bytes(self._line.inbox)
        self._line.inbox.clear()
        self.received += len(data)
        return memoryview(data)

    def receive_into(self, buffer: memoryview) -> int:
        """Read available bytes into `buffer`; return how many, at least one."""
        self._wait()
        inbox = self._line.inbox
        count = min(len(buffer), len(inbox))
        buffer[:count] = memoryview(inbox)[:count]
        del inbox[:count]
        self.received += count
        return count

    def _wait(self) -> None:
        """Let time pass until there is input. Raises the error of a connection that is lost or silent."""
        silent = self.timeout
        while not self._line.inbox:
            if self._line.is_cut:
                raise self._lost(None)
            before = self._core.clock.monotonic()
            self._core.wait(3600.0 if silent is None else silent)
            if silent is not None:
                silent -= self._core.clock.monotonic() - before
                if silent <= 0 and not self._line.inbox:
                    raise self._lost(TimeoutError(f"no answer for {self.timeout:g} s"))
