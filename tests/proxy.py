"""A TCP proxy that misbehaves on purpose: cuts connections at a byte, splits and delays what passes.

with Proxy(server.url) as proxy:
    proxy.cut("down", 100)          the next connection ends when 100 bytes of replies have passed
    proxy.piece = 1                 everything arrives byte by byte
    Connection(Address.parse(proxy.url))
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_READ = 65536


class Proxy:
    """Listens on a port of its own and passes everything on to the server at `url`."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cuts: deque[tuple[str, int]] = deque()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closing = False
        self.piece = _READ  # bytes that are passed on at once
        self.delay = 0.0  # seconds before each piece
        self.connections = 0  # so far
        self.cut_so_far = 0
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join(5)

    def cut(self, direction: str, after: int) -> None:
        """A connection to come is cut when so many bytes have passed: `up` to the server, `down` from it. Each cut is
        for one connection, in the order in which they were asked for."""
        self._cuts.append((direction, after))

    def cut_all(self) -> None:
        """Cut every connection now."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            _reset(one)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                _reset(client)
                continue
            for one in (client, server):
                if one.family != socket.AF_UNIX:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [client, server]
                self.connections += 1
                direction, after = self._cuts.popleft() if self._cuts else ("", 0)
            self._start(self._pass_on, client, server, after if direction == "up" else None)
            self._start(self._pass_on, server, client, after if direction == "down" else None)

    def _connect(self) -> socket.socket:
        if self._target.scheme == "unix":
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target.path)
            return server
        return socket.create_connection((self._target.hostname or "127.0.0.1", self._target.port or 6379))

    def _pass_on(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        try:
            while data := source.recv(_READ):
                for at in range(0, len(data), self.piece):
                    some = data[at : at + self.piece]
                    if self.delay:
                        time.sleep(self.delay)
                    if left is not None and len(some) >= left:
                        target.sendall(some[:left])
                        self.cut_so_far += 1
                        break
                    target.sendall(some)
                    left = None if left is None else left - len(some)
                else:
                    continue
                break
        except OSError:
            pass  # the other side is gone, and both are closed
        finally:
            _reset(source)
            _reset(target)


def _reset(one: socket.socket) -> None:
    """Close without a word, as a machine that vanishes: what is not read yet is lost."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()
