"""Serve the console with uvicorn, until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from spark_streams.connector.errors import ConfigError
from spark_streams.operations.console.incoming import HEAD_BYTES, BrowserConnection

_BACKLOG = 64  # connections that are accepted at once
_END_SECONDS = 2  # after which open connections are cut at the end


class OnceAMinute(logging.Filter):
    """Keeps a text out of the log if it was there in the last minute: strangers can repeat what they send."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[tuple[str, object], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        text = record.getMessage(), (record.exc_info or (None,))[0]
        self._logged = {text: at for text, at in self._logged.items() if record.created - 60 < at <= record.created}
        is_new = text not in self._logged
        self._logged.setdefault(text, record.created)
        return is_new


class _ConsoleServer(uvicorn.Server):
    """Ends with exit code 0 on SIGINT and SIGTERM. begun: called when the server listens."""

    def __init__(self, config: uvicorn.Config, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)
        self._begun()

    def _stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a socket at a port of this machine. Raises ConfigError."""
    bare = host.strip("[]")
    try:
        return socket.create_server((bare, port), family=socket.AF_INET6 if ":" in bare else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"the console cannot listen on {host}:{port}: {error.strerror}; use --port") from error


def listen_at(path: str) -> socket.socket:
    """Return a unix socket that only this user can open, in the place of one that a killed console has left. Raises
    ConfigError."""
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        if _is_left(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"the console cannot listen on {path}: {error.strerror}; set another --socket") from error
    finally:
        os.umask(mask)
    return listener


def _is_left(path: str) -> bool:
    """Whether this is a socket at which nobody listens."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(FileNotFoundError):
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return stat.S_ISSOCK(os.stat(path).st_mode)
    return False


def serve(app: ASGIApp, listener: socket.socket, begun: Callable[[], None]) -> None:
    """Serve the application until a signal. begun: called when the console listens."""
    config = uvicorn.Config(
        app,
        http=BrowserConnection,
        ws="none",
        loop="asyncio",
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=HEAD_BYTES,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_END_SECONDS,
    )
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(OnceAMinute())
    file = listener.getsockname() if listener.family == socket.AF_UNIX else None
    with listener:
        try:
            _ConsoleServer(config, begun).run([listener])
        finally:
            if file is not None:
                Path(file).unlink(missing_ok=True)
