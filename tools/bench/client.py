"""A client that costs almost no processor time: it sends prepared bytes, and counts replies instead of parsing them."""

from __future__ import annotations

import re
import socket
from typing import Any

import hiredis

PAGE = 1000
_IDS = re.compile(rb"\*2\r\n\$[0-9]+\r\n([0-9]+-[0-9]+)\r\n\*")


def request(*arguments: Any) -> bytes:
    """Encode a command as RESP."""
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class RawClient:
    """One connection to a server on 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(replyError=RuntimeError)
        self._buffer = memoryview(bytearray(1 << 20))

    def close(self) -> None:
        self.socket.close()

    def call(self, *arguments: Any) -> Any:
        """Return the parsed reply. For commands that are not measured."""
        self.socket.sendall(request(*arguments))
        while (value := self._reader.gets()) is False:
            self._reader.feed(self.socket.recv(1 << 20))
        if isinstance(value, Exception):
            raise value
        return value

    def take(self, replies: int) -> None:
        """Receive this number of replies, and drop them."""
        while replies:
            if self._reader.gets() is False:
                self._reader.feed(self.socket.recv(1 << 20))
            else:
                replies -= 1

    def bytes_of(self, data: bytes) -> bytes:
        """Return the bytes of the reply to one request."""
        self.socket.sendall(data)
        reply = b""
        while True:
            more = self.socket.recv(1 << 20)
            reply += more
            self._reader.feed(more)
            if self._reader.gets() is not False:
                return reply

    def exchange(self, data: bytes, size: int) -> None:
        """Send a request, and receive a reply of `size` bytes."""
        self.socket.sendall(data)
        buffer, receive = self._buffer, self.socket.recv_into
        while size > 0:
            size -= receive(buffer)

    def pages(self) -> list[tuple[bytes, list[bytes], int]]:
        """Read stream `s` by XRANGE in thousands. Return request, entry IDs and bytes of the reply for each page."""
        pages: list[tuple[bytes, list[bytes], int]] = []
        start = b"-"
        while True:
            command = request("XRANGE", "s", start, "+", "COUNT", PAGE)
            reply = self.bytes_of(command)
            ids = _IDS.findall(reply)
            if not ids:
                return pages
            pages.append((command, ids, len(reply)))
            start = b"(" + ids[-1]
