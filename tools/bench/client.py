"""A client that costs next to nothing: requests are ready-made bytes, replies are counted, not parsed."""

from __future__ import annotations

import re
import socket
from typing import Any

import hiredis

PAGE = 1000
_IDS = re.compile(rb"\*2\r\n\$[0-9]+\r\n([0-9]+-[0-9]+)\r\n\*")


def request(*arguments: Any) -> bytes:
    """A request."""
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class RawClient:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(replyError=RuntimeError)
        self._room = memoryview(bytearray(1 << 20))

    def close(self) -> None:
        self.socket.close()

    def call(self, *arguments: Any) -> Any:
        """The reply as a value; for what is not measured."""
        self.socket.sendall(request(*arguments))
        while (value := self._reader.gets()) is False:
            self._reader.feed(self.socket.recv(1 << 20))
        if isinstance(value, Exception):
            raise value
        return value

    def take(self, replies: int) -> None:
        """Take so many replies, whatever they are."""
        while replies:
            if self._reader.gets() is False:
                self._reader.feed(self.socket.recv(1 << 20))
            else:
                replies -= 1

    def bytes_of(self, data: bytes) -> bytes:
        """The bytes of the reply to one request."""
        self.socket.sendall(data)
        found = b""
        while True:
            more = self.socket.recv(1 << 20)
            found += more
            self._reader.feed(more)
            if self._reader.gets() is not False:
                return found

    def exchange(self, data: bytes, size: int) -> None:
        """Send, and take a reply of so many bytes."""
        self.socket.sendall(data)
        room, receive = self._room, self.socket.recv_into
        while size > 0:
            size -= receive(room)

    def pages(self) -> list[tuple[bytes, list[bytes], int]]:
        """XRANGE in thousands over stream s: request, ids, bytes of the reply."""
        found: list[tuple[bytes, list[bytes], int]] = []
        start = b"-"
        while True:
            asked = request("XRANGE", "s", start, "+", "COUNT", PAGE)
            reply = self.bytes_of(asked)
            ids = _IDS.findall(reply)
            if not ids:
                return found
            found.append((asked, ids, len(reply)))
            start = b"(" + ids[-1]
