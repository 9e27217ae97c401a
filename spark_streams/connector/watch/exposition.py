"""Metrics for Prometheus: served over HTTP, written to a file, or returned as text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from spark_streams.base.extras import command_for
from spark_streams.connector.errors import InvalidOptionError, UnsupportedError
from spark_streams.connector.watch.metrics_server import serve

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class Collects(Protocol):
    """Returns the current metrics at each scrape, on any thread."""

    def collect(self) -> Iterable[Metric]: ...


class Exposition:
    """Serves the metrics over HTTP (`/metrics`), writes them to a file, or both. trouble: see metrics_server.serve.

    Raises UnsupportedError without prometheus_client, InvalidOptionError if the port or the file cannot be used.
    """

    def __init__(
        self, collector: Collects, port: int | None = None, host: str = "127.0.0.1", file: Path | None = None,
        trouble: Callable[[], str | None] | None = None,
    ) -> None:  # fmt: skip
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise UnsupportedError(
                f"Prometheus metrics need the package prometheus_client: {command_for('monitor')}"
            ) from None
        self._registry: CollectorRegistry = CollectorRegistry()
        self._registry.register(collector)
        self._file = file
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None
        if port is not None:
            try:
                self._server, self._thread = serve(self._registry, host, port, trouble)
            except OSError as error:
                raise InvalidOptionError(f"metrics cannot be served at {host}:{port}: {error}") from error
        if file is not None:
            try:
                self.write()
            except OSError as error:
                self.close()
                raise InvalidOptionError(f"metrics cannot be written to {file}: {error}") from error

    @property
    def port(self) -> int | None:
        """The port on which metrics are served."""
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
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None
