"""Metrics for Prometheus, made by prometheus_client: served over HTTP, written to a file, or returned as text.

    GET /metrics     what the collector returns, on the thread of the request
    GET /healthz     of a query: 200, or 503 with the reason

What strangers can make the server do is bounded. At most `CONNECTIONS` requests are served at once. For another one,
the oldest connection is closed whose request has not arrived; without one, the oldest whose client has a page to read.
Metrics are made for at most `SCRAPES` at once, which are fewer: others get 503. So clients that only connect, or do not
read, delay no scrape and no probe. A client that sends or reads nothing for `SECONDS` is closed, and any other after
`MOST_SECONDS`.

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
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from spark_streams.base.extras import command_for
from spark_streams.connector.errors import InvalidOptionError, UnsupportedError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client.core import Metric

CONNECTIONS = 32
SECONDS = 10.0
SCRAPES = 24  # of these
MOST_SECONDS = 60.0
_UNFINISHED, _ARRIVED, _COLLECTING = range(3)  # states of a connection, in the order in which they make room
_CONNECTION = "rstream.connection"  # in the environment of a request
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)
Trouble = Callable[[], str | None]  # returns what is wrong, None if nothing is


class Collects(Protocol):
    """Returns the current metrics at each scrape, on any thread."""

    def collect(self) -> Iterable[Metric]: ...


class MetricsPage:
    """The metrics of a collector. With a port they are served, with a file they are written there. trouble: for
    `/healthz`.

    Raises UnsupportedError without prometheus_client, InvalidOptionError if the port or the file cannot be used.
    """

    def __init__(
        self, collector: Collects, port: int | None = None, host: str = "127.0.0.1", file: Path | None = None,
        trouble: Trouble | None = None,
    ) -> None:  # fmt: skip
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError:
            raise UnsupportedError(
                f"Prometheus metrics need the package prometheus_client: {command_for('monitor')}"
            ) from None
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._file = file
        self._server: _MetricsServer | None = None
        if port is not None:
            try:
                self._server = _MetricsServer(make_wsgi_app(self._registry), host, port, trouble)
            except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA refuses
                raise InvalidOptionError(f"metrics cannot be served at {host}:{port}: {error}") from error
        try:
            self.write()
        except OSError as error:
            self.close()
            raise InvalidOptionError(f"metrics cannot be written to {file}: {error}") from error

    @property
    def port(self) -> int | None:
        return None if self._server is None else self._server.server_port

    def write(self) -> None:
        """Replace the file atomically. Raises OSError."""
        if self._file is not None:
            from prometheus_client import write_to_textfile

            write_to_textfile(str(self._file), self._registry)

    def text(self) -> str:
        """Return the metrics as a scrape receives them."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()

    def close(self) -> None:
        """Stop serving; the file stays unchanged."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _MetricsHandler(WSGIRequestHandler):
    """Serves one request, without a log line."""

    timeout = SECONDS

    server: _MetricsServer

    def parse_request(self) -> bool:
        """Read the headers, and tell the server that the request has arrived."""
        is_request = super().parse_request()
        if is_request:
            self.server.set_state(self.connection, _ARRIVED)
        return is_request

    def get_environ(self) -> WSGIEnvironment:
        """Name the connection to the application."""
        return {**super().get_environ(), _CONNECTION: self.connection}

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves an application in daemon threads, one for each request and at most `CONNECTIONS` of them."""

    daemon_threads = True
    request_queue_size = 4 * CONNECTIONS  # connections that the kernel accepts; for one more, it lets a client wait 1 s

    def __init__(self, metrics: WSGIApplication, host: str, port: int, trouble: Trouble | None) -> None:
        """Listen, and serve. Raises OSError."""
        found = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        is_local = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        self._lock = threading.Lock()
        self._open: dict[socket.socket, int] = {}  # the oldest first, with their states
        super().__init__((str(address[0]), port), _MetricsHandler)
        self.set_app(_guarded(self._bounded(metrics), is_local, trouble))
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the request in a thread. If there are too many, another connection is closed for it."""
        with self._lock:
            if len(self._open) >= CONNECTIONS:
                oldest = min(self._open, key=self._open.__getitem__)
                del self._open[oldest]
                _shut_down(oldest)
            self._open[request] = _UNFINISHED
        super().process_request(request, client_address)

    def set_state(self, connection: socket.socket, state: int) -> bool:
        """Set the state of a connection. Return whether there is room for it in that state."""
        with self._lock:
            if state == _COLLECTING and sum(other == state for other in self._open.values()) >= SCRAPES:
                return False
            if connection in self._open:
                self._open[connection] = state
            return connection in self._open

    def _bounded(self, metrics: WSGIApplication) -> WSGIApplication:
        """Return the pages of metrics, which are made for a bounded number of requests at once."""

        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            if not self.set_state(environ[_CONNECTION], _COLLECTING):
                start_response("503 Service Unavailable", [_TEXT])
                return [b"Too many scrapes at once. Scrape again later.\n"]
            try:
                return metrics(environ, start_response)
            finally:
                self.set_state(environ[_CONNECTION], _ARRIVED)

        return answer

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


def _guarded(metrics: WSGIApplication, is_local: bool, trouble: Trouble | None) -> WSGIApplication:
    """Answer `/healthz` and refuse other sites, before the pages of prometheus_client."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not answers_to(environ.get("HTTP_HOST", ""), is_local):
            start_response("421 Misdirected Request", [_TEXT])
            return [b"Metrics on a loopback address are for this machine: use localhost or its IP address as host.\n"]
        if trouble is not None and environ.get("PATH_INFO") == "/healthz":
            reason = trouble()
            start_response("200 OK" if reason is None else "503 Service Unavailable", [_TEXT])
            return [(reason or "ok\n").encode("utf-8", "backslashreplace")]
        return metrics(environ, start_response)

    return answer


def answers_to(host: str, is_local: bool) -> bool:
    """Whether a request with this Host is answered. is_local: the server listens on a loopback address."""
    if not host:
        return True  # HTTP/1.0; browsers always send it
    match = _HOST.fullmatch(host)
    if match is None or not is_local:
        return match is not None
    name = match["name"].lower().strip("[]")
    try:
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
