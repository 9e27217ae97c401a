"""A socket that is written and read at the same time: replies are taken in while a request does not go out yet.

Whoever sends a megabyte of commands and reads nothing meanwhile depends on the server's goodwill: its replies fill the
buffers of both sides, and then both wait. Here sending never waits without reading. What comes meanwhile is kept, and
handed out first.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable

READ_SIZE = 1 << 18
_BLOCKED = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# Makes the error for a connection that broke, and closes it; None where the other side has closed it.
Lost = Callable[[OSError | None], Exception]


class TooMuchError(Exception):
    """More has come while something was sent than whoever sends would keep."""


class Duplex:
    """A connected socket, from here on non-blocking; what it raises is made by `lost`.

    timeout: how long nothing at all may happen, in seconds; at first the socket's. received: bytes so far; most: that
    may come while something is sent, None: any number.
    """

    def __init__(self, connected: socket.socket, lost: Lost) -> None:
        self.timeout = connected.gettimeout()
        connected.setblocking(False)
        self._socket = connected
        self._lost = lost
        self._kept = bytearray()  # came while something was sent, and is not handed out yet
        self._room = memoryview(bytearray(READ_SIZE))
        self.received = 0
        self.most: int | None = None
        self._readable, self._either = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._either.register(connected, select.POLLIN | select.POLLOUT)

    def send(self, data: bytes | memoryview) -> None:
        """Send all of it. Raises TooMuchError when more than `most` bytes come meanwhile."""
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except _BLOCKED:
                self._wait(self._either)
                self._keep_what_has_come()
                if self.most is not None and len(self._kept) > self.most:
                    raise TooMuchError from None
            except OSError as error:
                raise self._lost(error) from None

    @property
    def has_input(self) -> bool:
        """Whether something came while a request was sent, and is not handed out yet."""
        return bool(self._kept)

    def receive(self) -> memoryview:
        """Some bytes, one at least; valid until the next call."""
        return self._room[: self.receive_into(self._room)]

    def receive_into(self, room: memoryview) -> int:
        """Some bytes into `room`; how many, one at least."""
        if self._kept:
            got = min(len(room), len(self._kept))
            room[:got] = memoryview(self._kept)[:got]
            del self._kept[:got]
            return got
        while not (got := self._take(room)):
            self._wait(self._readable)
        return got

    def _keep_what_has_come(self) -> None:
        got = self._take(self._room)
        self._kept += self._room[:got]

    def _take(self, room: memoryview) -> int:
        """What is there by now; 0: nothing yet."""
        try:
            got = self._socket.recv_into(room)
        except _BLOCKED:
            return 0
        except OSError as error:
            raise self._lost(error) from None
        if not got:
            raise self._lost(None)
        self.received += got
        return got

    def _wait(self, poll: select.poll) -> None:
        if not poll.poll(None if self.timeout is None else self.timeout * 1000):
            raise self._lost(TimeoutError(f"no answer for {self.timeout:g} s"))
