"""The servers that are compared, each in its own process, and a client that costs almost no processor time."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis

from tools.servers.server import free_port, started

PAGE = 1000
_IDS = re.compile(rb"\*2\r\n\$[0-9]+\r\n([0-9]+-[0-9]+)\r\n\*")
STAMPS = re.compile(rb"\$1\r\nt\r\n\$16\r\n([0-9]{16})\r\n")  # of entries whose field t is a time in 16 digits


def request(*arguments: Any) -> bytes:
    """Encode a command as RESP."""
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def ids_in(reply: bytes) -> list[bytes]:
    """Return the IDs of the entries in a reply."""
    return _IDS.findall(reply)


_CLOSED = "the server has closed the connection"  # without this error a client would read nothing for ever


class RawClient(contextlib.AbstractContextManager["RawClient"]):
    """One connection to a server on 127.0.0.1, which a `with` closes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(replyError=RuntimeError)
        self._buffer = memoryview(bytearray(1 << 20))

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, *arguments: Any) -> Any:
        """Return the parsed reply. For commands that are not measured."""
        self.socket.sendall(request(*arguments))
        while (value := self._reader.gets()) is False:
            self._reader.feed(self._received())
        if isinstance(value, Exception):
            raise value
        return value

    def send(self, data: bytes, replies: int) -> None:
        """Send requests, receive this number of replies, and drop them."""
        self.socket.sendall(data)
        while replies:
            if self._reader.gets() is False:
                self._reader.feed(self._received())
            else:
                replies -= 1

    def _received(self) -> bytes:
        if not (data := self.socket.recv(1 << 20)):
            raise ConnectionResetError(_CLOSED)
        return data

    def bytes_of(self, data: bytes) -> bytes:
        """Return the bytes of the reply to one request."""
        self.socket.sendall(data)
        reply = b""
        while True:
            more = self._received()
            reply += more
            self._reader.feed(more)
            if self._reader.gets() is not False:
                return reply

    def exchange(self, data: bytes, size: int) -> None:
        """Send a request, and receive a reply of `size` bytes."""
        self.socket.sendall(data)
        buffer, receive = self._buffer, self.socket.recv_into
        while size > 0:
            if not (count := receive(buffer)):
                raise ConnectionResetError(_CLOSED)
            size -= count

    def pages(self) -> list[tuple[bytes, list[bytes], int]]:
        """Read stream `s` by XRANGE in thousands. Return request, entry IDs and bytes of the reply for each page."""
        pages: list[tuple[bytes, list[bytes], int]] = []
        start = b"-"
        while True:
            command = request("XRANGE", "s", start, "+", "COUNT", PAGE)
            reply = self.bytes_of(command)
            ids = ids_in(reply)
            if not ids:
                return pages
            pages.append((command, ids, len(reply)))
            start = b"(" + ids[-1]


@contextlib.contextmanager
def producing(rate: int, every: float, add: Callable[[int, int], object]) -> Iterator[None]:
    """Within the block, call `add(microsecond, rows)` each `every` seconds, so that it adds `rate` rows a second."""
    ended = threading.Event()

    def produce() -> None:
        begun, made = time.perf_counter(), 0
        while not ended.wait(every):
            due = int((time.perf_counter() - begun) * rate) - made
            add(int(time.time() * 1e6), due)
            made += due

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def adding(port: int, stream: str, rate: int, every: float, *fields: str) -> Iterator[None]:
    """Within the block, add entries with the microsecond `t` and these fields at a rate."""
    with RawClient(port) as client:

        def add(stamp: int, count: int) -> None:
            client.send(request("XADD", stream, "*", "t", f"{stamp:016d}", *fields) * count, count)

        with producing(rate, every, add):
            yield


# -- servers -----------------------------------------------------------------------------------------------------------


_FAKE = """
import fakeredis
from fakeredis._clients import _tcp_server
# With Nagle's algorithm every pipeline waits 44 ms for an acknowledgement.
_tcp_server.TCPFakeRequestHandler.disable_nagle_algorithm = True
fakeredis.TcpFakeServer(("127.0.0.1", {port})).serve_forever()
"""


@dataclass(frozen=True)
class Running:
    """A server under test."""

    kind: str
    port: int
    pid: int

    @property
    def url(self) -> str:
        """URL that a user would configure."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> RawClient:
        """Return a new raw client."""
        return RawClient(self.port)

    def call(self, *words: Any) -> Any:
        """Return the reply to one command, on a connection of its own."""
        with self.client() as client:
            return client.call(*words)

    def resident(self) -> int:
        """Return bytes of private memory of its process."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
        return 0


def have_redis() -> bool:
    """Whether redis-server and redis-benchmark are installed."""
    return bool(shutil.which("redis-server") and shutil.which("redis-benchmark"))


@contextlib.contextmanager
def running(kind: str, *options: str) -> Iterator[Running]:
    """Start an empty server of this kind in an empty directory, and stop it at the end."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as directory:
        arguments = ["--port", str(port), "--dir", directory, *options]
        command = {
            "engine": [sys.executable, "-m", "spark_streams.engine", *arguments],
            "redis-server": ["redis-server", "--save", "", *arguments],
            "fakeredis": [sys.executable, "-c", _FAKE.format(port=port)],
        }[kind]
        with started(kind, f"redis://127.0.0.1:{port}/0", command, lambda _: _answers(port), interval=0.002) as served:
            yield Running(kind, port, served.process.pid)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), RawClient(port) as client:
        return bool(client.call("PING") == b"PONG")
    return False


def first_pong(kind: str) -> float:
    """Return milliseconds from the start of the process to its first PONG."""
    started = time.perf_counter()
    with running(kind):
        return (time.perf_counter() - started) * 1000
