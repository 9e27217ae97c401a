"""The sockets of connections: written and read at the same time, replies while a request cannot be sent.

A client that sends a megabyte of commands and reads nothing meanwhile can block: the replies fill the buffers of both
sides, and then both wait. Here sending never waits without reading. Bytes that arrive meanwhile are stored, and
returned first.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.wire.address.address import Address

READ_SIZE = 1 << 18
_BLOCKED = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# Makes the error for a broken connection, and closes it; None: the server has closed it.
Lost = Callable[[OSError | None], Exception]


class TooMuchError(Exception):
    """More bytes arrived while a request was sent than its sender stores."""


class Duplex:
    """A connected socket, which becomes non-blocking; `lost` makes its errors.

    timeout: seconds without any progress, at first the socket's timeout. received: bytes so far. max_kept: bytes that
    may arrive while a request is sent; None: no limit.
    """

    def __init__(self, connected: socket.socket, lost: Lost) -> None:
        self.timeout = connected.gettimeout()
        connected.setblocking(False)
        self._socket = connected
        self._lost = lost
        self._inbox = bytearray()  # arrived while a request was sent, and not returned yet
        self._buffer = memoryview(bytearray(READ_SIZE))
        self.received = 0
        self.max_kept: int | None = None
        self._readable, self._either = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._either.register(connected, select.POLLIN | select.POLLOUT)

    def send(self, data: bytes | memoryview) -> None:
        """Send all of the data. Raises TooMuchError if more than `max_kept` bytes arrive meanwhile."""
        unsent = memoryview(data)
        while unsent:
            try:
                unsent = unsent[self._socket.send(unsent) :]
            except _BLOCKED:
                self._wait(self._either)
                self._store_input()
                if self.max_kept is not None and len(self._inbox) > self.max_kept:
                    raise TooMuchError from None
            except OSError as error:
                raise self._lost(error) from None

    @property
    def has_input(self) -> bool:
        """Whether bytes that arrived during a send are not returned yet."""
        return bool(self._inbox)

    def receive(self) -> memoryview:
        """Return available bytes, at least one; valid until the next call."""
        return self._buffer[: self.receive_into(self._buffer)]

    def receive_into(self, buffer: memoryview) -> int:
        """Read available bytes into `buffer`; return how many, at least one."""
        if self._inbox:
            count = min(len(buffer), len(self._inbox))
            buffer[:count] = memoryview(self._inbox)[:count]
            del self._inbox[:count]
            return count
        while not (count := self._receive_available(buffer)):
            self._wait(self._readable)
        return count

    def _store_input(self) -> None:
        count = self._receive_available(self._buffer)
        self._inbox += self._buffer[:count]

    def _receive_available(self, buffer: memoryview) -> int:
        """Read available bytes; 0: none yet."""
        try:
            count = self._socket.recv_into(buffer)
        except _BLOCKED:
            return 0
        except OSError as error:
            raise self._lost(error) from None
        if not count:
            raise self._lost(None)
        self.received += count
        return count

    def _wait(self, poll: select.poll) -> None:
        if not poll.poll(None if self.timeout is None else self.timeout * 1000):
            raise self._lost(TimeoutError(f"no answer for {self.timeout:g} s"))


# -- the socket of a bundled engine, as it was when a connection to the engine was made --------------------------------

# A logout and a cleaning of /tmp remove the folder of the socket. The engine then ends (engine.server.event_loop), and
# its streams with it, if no directory keeps them. The next process starts another, empty one under the same name. So a
# connection that is lost tells whether the socket is still the same, and the query does not go on in another engine.


class EngineSocket(NamedTuple):
    """path: of the socket; file: its device and inode."""

    path: Path
    file: tuple[int, int] | None

    @classmethod
    def of(cls, address: Address, url: str) -> Self | None:
        """Return the socket of a connection; None if the server is no bundled engine. url: what it is connected to."""
        if not address.is_embedded:
            return None
        path = Path(unquote(urlsplit(url).path))
        return cls(path, _file(path))

    def removed(self, address: Address) -> ServerUnreachableError | None:
        """Return the final error if the engine's streams are gone with its folder; None if it may be connected to
        again."""
        directory = address.directory
        if directory is None and _file(self.path) != self.file:
            what, remedy = f"socket {self.path}", "Use url embedded:///directory, which keeps streams"
        elif directory is not None and not directory.exists():
            what, remedy = f"directory {directory}", "Restore the directory, or name another one"
        else:
            return None
        return ServerUnreachableError(
            f"lost the bundled engine at {address}: its {what} is gone. The engine was stopped, or a logout or a "
            f"cleaning of temporary files has removed the folder. Its streams are gone with it. {remedy}",
            passes=False,
        )


def _file(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
