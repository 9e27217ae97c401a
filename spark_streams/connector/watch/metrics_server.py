"""The HTTP server of metrics: prometheus_client's pages, with bounds on what strangers can make it do.

Of a query it also answers `/healthz`: 200, or 503 with the reason.

At most `CONNECTIONS` requests are served at once. For another one, the oldest connection is closed whose request has
not arrived; without one, the new connection is closed. So clients that only connect delay no scrape. A client that
sends or reads nothing for `SECONDS` is closed, and any other after `MOST_SECONDS`.

A page of another site must not read metrics from a server on this machine (DNS rebinding). So a server that listens on
a loopback address answers only to loopback names and IP addresses as Host.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client import CollectorRegistry

CONNECTIONS = 32
SECONDS = 10.0
MOST_SECONDS = 60.0
_TEXT = (("Content-Type", "text/plain; charset=utf-8"),)
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)


def answers_to(host: str, is_local: bool) -> bool:
    """Whether a request with this Host is answered. is_local: the server listens on a loopback address."""
    if not host:
        return True  # HTTP/1.0; browsers always send it
    match = _HOST.fullmatch(host)
    if match is None or not is_local:
        return match is not None
    name = match["name"].lower().strip("[]")
    return name == "localhost" or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Handler(WSGIRequestHandler):
    """Serves one request, without a log line."""

    timeout = SECONDS

    server: _Server

    def parse_request(self) -> bool:
        """Read the headers, and tell the server that the request has arrived."""
        is_request = super().parse_request()
        if is_request:
            self.server.arrived(self.connection)
        return is_request

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, at most `CONNECTIONS` of them."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._open: dict[socket.socket, bool] = {}  # the oldest first: whether its request has arrived
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the request in a thread, or close its connection."""
        if not self._has_room(request):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def _has_room(self, connection: socket.socket) -> bool:
        """Count a connection, and return whether there is room for it. An unfinished one is closed for it."""
        with self._lock:
            if len(self._open) >= CONNECTIONS:
                oldest = next((other for other, has_arrived in self._open.items() if not has_arrived), None)
                if oldest is None:
                    return False
                del self._open[oldest]
                _shut_down(oldest)
            self._open[connection] = False
            return True

    def arrived(self, connection: socket.socket) -> None:
        """The request of this connection has arrived, so it is not closed for another one."""
        with self._lock:
            if connection in self._open:
                self._open[connection] = True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the request, and give up a client that takes too long."""
        end = threading.Timer(MOST_SECONDS, _shut_down, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, unless it only says that the client has gone or was given up."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        connection.shutdown(socket.SHUT_RDWR)


def serve(
    registry: CollectorRegistry, host: str, port: int, trouble: Callable[[], str | None] | None = None
) -> tuple[WSGIServer, threading.Thread]:
    """Serve the metrics of a registry in a daemon thread. Raises OSError.

    trouble: returns what is wrong, None if nothing is, for `/healthz`.
    """
    from prometheus_client import make_wsgi_app

    bare = host.strip("[]")
    family, _, _, _, address = socket.getaddrinfo(bare or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    server = _Server((str(address[0]), port), family)
    is_local = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    server.set_app(_guarded(make_wsgi_app(registry), is_local, trouble))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    return server, thread


def _guarded(
    app: Callable[..., Any], is_local: bool, trouble: Callable[[], str | None] | None
) -> Callable[..., Iterable[bytes]]:
    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not answers_to(environ.get("HTTP_HOST", ""), is_local):
            start_response("421 Misdirected Request", [*_TEXT])
            return [b"Metrics on a loopback address are for this machine: use localhost or its IP address as host.\n"]
        if trouble is not None and environ.get("PATH_INFO") == "/healthz":
            reason = trouble()
            start_response("200 OK" if reason is None else "503 Service Unavailable", [*_TEXT])
            return [(reason or "ok\n").encode("utf-8", "backslashreplace")]
        answer: Iterable[bytes] = app(environ, start_response)
        return answer

    return guarded
