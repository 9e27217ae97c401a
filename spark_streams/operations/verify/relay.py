"""A relay in this process: it passes connections on to a server, and breaks them at a byte."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

READ = 65536
UP, DOWN = "up", "down"  # to the server, from it
EXEC = "behind an EXEC"  # that adds entries: the server carries it out, and its replies do not pass
_ADD, _EXEC = b"\r\nXADD\r\n", re.compile(rb"\r\nEXEC\r\n")


class Relay:
    """Listens where the users of this machine reach no more than the server: on any port of 127.0.0.1, or for a server
    on a socket on one in a folder. As a context manager it closes all its connections.

    url: of the server, `redis://` or `unix://`. where: a folder of this user alone, or a port of 127.0.0.1.
    """

    def __init__(self, url: str, where: Path | int = 0) -> None:
        self._target = urlsplit(url)
        self.path = where / "relay.sock" if isinstance(where, Path) and self._target.scheme == "unix" else None
        if self.path is None:
            self._listener = socket.create_server(("127.0.0.1", where if isinstance(where, int) else 0))
        else:
            self._listener = socket.create_server(str(self.path), family=socket.AF_UNIX)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closing = False
        self._cut = ("", 0)  # direction, and bytes until then; or EXEC, and how many pass before
        self._adding = set[socket.socket]()  # clients that have sent an XADD since their last EXEC
        self._mute = set[socket.socket]()  # clients that receive nothing any more
        self.cut_so_far = 0
        self.port: int = 0 if self.path else self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept, self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._stop_listening()
        self.cut_all()
        for thread in self._threads:
            thread.join(5)

    def break_at(self, direction: str, after: int) -> None:
        """Break the connection on which this byte, or this EXEC, passes, counted from now over all connections."""
        with self._lock:
            self._cut = (direction, after)

    def cut_all(self) -> None:
        """Break every connection now."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for connected in sockets:
            reset(connected)

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _start(self, target: Callable[..., object], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                reset(client)
                continue
            for connected in (client, server):
                if connected.family != socket.AF_UNIX:
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [client, server]
            self._join(client, server)

    def _connect(self) -> socket.socket:
        if self._target.scheme == "unix":
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target.path)
            return server
        return socket.create_connection((self._target.hostname or "127.0.0.1", self._target.port or 6379))

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what both send."""
        self._start(self._pass_on, client, server, UP)
        self._start(self._pass_on, server, client, DOWN)

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):  # the other side is gone, and both are closed
            while data := source.recv(READ):
                passing = 0 if target in self._mute else self._passing(direction, data, source)
                target.sendall(data[:passing])
                if source in self._mute:
                    target.shutdown(socket.SHUT_WR)  # the server ends the connection when it has carried out all
                    return
                if passing < len(data) and target not in self._mute:
                    break
        reset(source)
        reset(target)

    def _passing(self, direction: str, data: bytes, source: socket.socket) -> int:
        """Return how many of these bytes pass before the connection breaks."""
        with self._lock:
            what, left = self._cut
            if direction != (UP if what == EXEC else what):
                return len(data)
            places: Sequence[int] = range(len(data))
            if what == EXEC:
                if _ADD in data:
                    self._adding.add(source)
                found = _EXEC.search(data) if source in self._adding else None
                places = [found.end()] if found else []
                self._adding -= {source} if found else set()
            if left >= len(places):
                self._cut = (what, left - len(places))
                return len(data)
            self._cut = ("", 0)
            self.cut_so_far += 1
            if what == EXEC:
                self._mute.add(source)
            return places[left]


def reset(connected: socket.socket) -> None:
    """Close as a machine that vanishes: unread bytes are lost."""
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        connected.close()
