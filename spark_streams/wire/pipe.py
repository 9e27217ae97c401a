"""A connection that is written and read at the same time: replies are taken in while a request does not go out yet.

Whoever sends a megabyte of commands and reads nothing meanwhile depends on the server's goodwill: its replies fill the
buffers of both sides, and then both wait. Here sending never waits without reading.

Requests end in a mark (an ECHO of a random token); `take` hands over the reply bytes before the oldest mark.
"""

from __future__ import annotations

import select
import socket
import ssl

from spark_streams.wire.connection import REPLY_TIMEOUT, Connection

_READ_SIZE = 1 << 18
_BLOCKED = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Pipe:
    """Marked requests over one connection, which is used for nothing else while replies are outstanding."""

    def __init__(self, server: Connection) -> None:
        self.server = server
        self.mark, self._token = server.mark
        self._socket: socket.socket = server.raw_socket
        self._inbox = bytearray()
        self._searched = 0
        self._room = memoryview(bytearray(_READ_SIZE))

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send all pieces; replies that come meanwhile are kept. Raises ServerUnreachableError."""
        self._socket.setblocking(False)
        try:
            for piece in pieces if len(pieces) == 1 or sum(map(len, pieces)) > _READ_SIZE else [b"".join(pieces)]:
                self._send(memoryview(piece))
        finally:
            if self._socket.fileno() >= 0:
                self._socket.settimeout(REPLY_TIMEOUT)

    def _send(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._socket.send(data) :]
            except _BLOCKED:
                self._wait(select.POLLIN | select.POLLOUT)
                try:
                    self._take_in()
                except _BLOCKED:
                    continue
            except OSError as error:
                raise self.server.lost(error) from error

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        if not poll.poll(REPLY_TIMEOUT * 1000):
            raise self.server.lost(TimeoutError(f"no answer for {REPLY_TIMEOUT:.0f} s"))

    def take(self) -> bytes:
        """The reply bytes before the oldest mark. Raises ServerUnreachableError."""
        while (at := self._inbox.find(self._token, self._searched)) < 0:
            self._searched = max(len(self._inbox) - len(self._token), 0)
            self._take_in()
        found = bytes(memoryview(self._inbox)[:at])
        del self._inbox[: at + len(self._token)]
        self._searched = 0
        return found

    def _take_in(self) -> None:
        try:
            got = self._socket.recv_into(self._room)
        except _BLOCKED:
            raise
        except OSError as error:
            raise self.server.lost(error) from error
        if not got:
            raise self.server.lost(None)
        self._inbox += self._room[:got]
