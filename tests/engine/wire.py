"""A client that shows replies as they are: bytes on the wire, and values with nothing guessed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import hiredis

from tools.servers.server import Server
from tools.waiting import until


class Failed(str):
    """An error reply, its text without the leading `-`."""

    __slots__ = ()


class Wire:
    """One connection: `call` gives values (error replies as Failed), `raw` gives the very bytes of a reply."""

    def __init__(self, server: Server, resp: int = 2) -> None:
        url = urlsplit(server.url)
        if url.scheme == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(url.path)
        else:
            self.socket = socket.create_connection((url.hostname, url.port))
        self.socket.settimeout(5)
        self._reader = hiredis.Reader(replyError=Failed, protocolError=ConnectionError)
        if resp == 3:
            self.call("HELLO", "3")

    def close(self) -> None:
        self.socket.close()

    def send(self, *arguments: Any) -> None:
        self.socket.sendall(command(*arguments))

    def call(self, *arguments: Any) -> Any:
        self.send(*arguments)
        return self.reply()

    def reply(self) -> Any:
        while (value := self._reader.gets()) is False:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("closed")
            self._reader.feed(data)
        return value

    def raw(self, *arguments: Any) -> bytes:
        """The bytes of one whole reply."""
        self.send(*arguments)
        return self.raw_reply()

    def raw_reply(self) -> bytes:
        """The bytes of the reply that comes next."""
        data = b""
        reader = hiredis.Reader(replyError=Failed)
        while True:
            more = self.socket.recv(1 << 20)
            if not more:
                raise ConnectionError("closed")
            data += more
            reader.feed(more)
            if reader.gets() is not False:
                return data

    def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while more := self.socket.recv(1 << 20):
                data += more
        return data


def command(*arguments: Any) -> bytes:
    """A request."""
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@contextlib.contextmanager
def wire(server: Server, resp: int = 2) -> Iterator[Wire]:
    """A Wire, closed at the end."""
    opened = Wire(server, resp)
    try:
        yield opened
    finally:
        opened.close()


def wait_blocked(client: Wire, count: int) -> None:
    """Wait until the server counts so many blocked clients."""
    line = f"blocked_clients:{count}\r\n".encode()
    until(lambda: line in client.call("INFO", "clients"), f"not {count} clients are blocked", interval=0.005)
