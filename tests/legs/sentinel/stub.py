"""A sentinel that says what a test wants it to say, on a real socket."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import hiredis

from tools.servers.sentinels import NAME


class Stub(socketserver.ThreadingTCPServer):
    """Names the server on `master`, in configuration `epoch`; flags, state: as SENTINEL MASTERS has them; known: the
    name that it has for it; asked: how often."""

    daemon_threads = True

    def __init__(self, master: int, epoch: int = 0, flags: str = "master", state: str = "", known: str = NAME) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.master, self.epoch, self.flags, self.state, self.known = master, epoch, flags, state, known
        self.asked = 0
        self.subscribers: list[socket.socket] = []

    def publish(self) -> None:
        """Tell all who listen that the configuration has changed."""
        for one in self.subscribers:
            one.sendall(_packed(["message", "+switch-master", "whoever listens asks what has changed"]))

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Answers(socketserver.BaseRequestHandler):
    server: Stub

    def handle(self) -> None:
        reader = hiredis.Reader(encoding="utf-8")
        while data := self.request.recv(65536):
            reader.feed(data)
            while (words := reader.gets()) is not False:
                self.request.sendall(_packed(self._answer([word.upper() for word in words], words)))

    def _answer(self, upper: list[str], words: list[str]) -> object:
        told = self.server
        if upper[:2] == ["SENTINEL", "GET-MASTER-ADDR-BY-NAME"]:
            told.asked += 1
            return ["127.0.0.1", told.master] if words[2] == told.known else None
        if upper[0] == "SUBSCRIBE":
            told.subscribers.append(self.request)
        if upper[0] == "SENTINEL":
            state = ["failover-state", told.state] if told.state else []
            flat = ["name", told.known, "flags", told.flags, "config-epoch", told.epoch]
            return [[*flat, *state]]
        return "OK"


def _packed(value: object) -> bytes:
    if value is None:
        return b"*-1\r\n"
    if isinstance(value, list):
        return b"*%d\r\n%b" % (len(value), b"".join(map(_packed, value)))
    text = str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


@contextmanager
def stub(master: int, epoch: int = 0, flags: str = "master", state: str = "", known: str = NAME) -> Iterator[Stub]:
    """A running one."""
    with Stub(master, epoch, flags, state, known) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
