"""A TCP proxy that misbehaves on purpose: cuts connections at a byte, splits and delays what passes.

with Proxy(server.url) as proxy:
    proxy.cut("down", 100)          the next connection ends when 100 bytes of replies have passed
    proxy.cut("late", 100)          it ends for the client when 100 bytes of requests have come; they arrive later
    proxy.refuse = True             nobody gets through any more
    proxy.meanwhile = act           act("up") is called before each piece is passed on
    proxy.piece = 1                 everything arrives byte by byte
    proxy.away(2.0)                 no connection for two seconds, as when the server is started again
    Connection(Address.parse(proxy.url))
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from spark_streams.operations.verify.relay import READ, Relay, reset
from tools.servers.server import free_port


class Proxy(Relay):
    """Listens on a port of its own and passes everything on to the server at `url`."""

    def __init__(self, url: str) -> None:
        # Not a port that the system assigns by itself: while the proxy is away, Spark could listen there, and take the
        # first bytes of a request for a length of gigabytes.
        super().__init__(url, free_port())
        self._cuts: deque[tuple[str, int]] = deque()
        self._returning: threading.Timer | None = None  # while it is away
        self.piece = READ  # bytes that are passed on at once
        self.delay = 0.0  # seconds before each piece
        self.connections = 0  # so far
        self.late = 0.01  # seconds until requests of a connection that was cut arrive
        self._under_way = 0  # connections whose requests have yet to arrive
        self.refuse = False
        self.when_cut: Callable[[], None] = lambda: None
        self.meanwhile: Callable[[str], None] = lambda direction: None
        self.passed: list[dict[str, list[int]]] = []  # per connection and direction: bytes so far, piece by piece
        self.requests = bytearray()  # of the newest connection
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def cut(self, direction: str, after: int) -> None:
        """A connection to come is cut when so many bytes have passed: `up` to the server, `down` from it; `late`: up,
        and what has come by then arrives a moment after the client was told that the connection is gone. Each cut is
        for one connection, in the order in which they were asked for."""
        self._cuts.append((direction, after))

    def lead_to(self, url: str) -> None:
        """As after a failover: every connection is cut, and those to come lead to this server."""
        self._target = urlsplit(url)
        self.cut_all()

    def lead_new_ones_to(self, url: str) -> None:
        """As an address that leads to another server by now: connections to come lead there, and the others live on."""
        self._target = urlsplit(url)

    def forget_cuts(self) -> None:
        """Cuts that no connection has come for yet."""
        self._cuts.clear()

    def wait_for_late(self) -> None:
        """Until requests that are late have been carried out."""
        while self._under_way:
            time.sleep(self.late / 2)

    def away(self, seconds: float) -> None:
        """Cut every connection, and refuse new ones until the time is over."""
        self._stop_listening()
        self.cut_all()
        self._returning = threading.Timer(seconds, self._listen_again)
        self._returning.start()

    def _stop_listening(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
            self._returning.join()
        super()._stop_listening()

    def _listen_again(self) -> None:
        if not self._closing:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._start(self._accept, self._listener)

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            direction, after = self._cuts.popleft() if self._cuts else ("", 0)
        passed: dict[str, list[int]] = {"up": [0], "down": [0]}
        self.passed.append(passed)
        self.requests = requests = bytearray()
        up = after if direction in ("up", "late") else None
        down = after if direction == "down" else None
        self._start(self._pass_on, client, server, up, "up", passed["up"], requests, direction == "late")
        self._start(self._pass_on, server, client, down, "down", passed["down"], bytearray())

    def _connect(self) -> socket.socket:
        if self.refuse:
            raise ConnectionRefusedError
        return super()._connect()

    def _pass_on(
        self,
        source: socket.socket,
        target: socket.socket,
        left: int | None,
        direction: str,
        passed: list[int],
        kept: bytearray,
        late: bool = False,
    ) -> None:
        try:
            while data := source.recv(READ):
                for at in range(0, len(data), self.piece):
                    some = data[at : at + self.piece]
                    if self.delay:
                        time.sleep(self.delay)
                    self.meanwhile(direction)
                    if left is not None and len(some) >= left:
                        self.cut_so_far += 1
                        self.when_cut()
                        if late:
                            self._deliver_late(source, target, data[at:])
                        else:
                            target.sendall(some[:left])
                        break
                    # Noted first: whoever has the answer may ask what was sent for it.
                    passed.append(passed[-1] + len(some))
                    kept += some if direction == "up" else b""
                    target.sendall(some)
                    left = None if left is None else left - len(some)
                else:
                    continue
                break
        except OSError:
            pass  # the other side is gone, and both are closed
        finally:
            reset(source)
            reset(target)

    def _deliver_late(self, client: socket.socket, server: socket.socket, requests: bytes) -> None:
        """The client sees the connection break; later the server gets what was sent, and carries it out."""
        with self._lock:
            self._under_way += 1
        try:
            reset(client)
            time.sleep(self.late)
            server.sendall(requests)
            server.shutdown(socket.SHUT_WR)
            server.settimeout(5)
            while server.recv(READ):
                pass
        finally:
            with self._lock:
                self._under_way -= 1
