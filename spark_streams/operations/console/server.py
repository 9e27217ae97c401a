"""Serve the console with uvicorn, until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.schemas.shown import FieldDecoders
from spark_streams.connector.wire.address.address import Address
from spark_streams.operations.console.access import Signer
from spark_streams.operations.console.audit import Audit
from spark_streams.operations.console.bounds import HEAD_BYTES
from spark_streams.operations.console.changes import Changes
from spark_streams.operations.console.live import Live
from spark_streams.operations.console.login.users import Users
from spark_streams.operations.console.mask import Mask
from spark_streams.operations.console.request.connections import Connection, tls_context
from spark_streams.operations.console.site import Site
from spark_streams.operations.monitor.snapshots import SnapshotCache, StreamFilter

if TYPE_CHECKING:
    from spark_streams.operations.console.login.oidc import Oidc

_SNAPSHOT_SECONDS = 60.0  # that a snapshot may take
_BACKLOG = 64  # connections that are accepted at once: each TLS connection begins with a buffer of 256 kB
_END_SECONDS = 2  # after which open connections are cut at the end


def site_of(
    address: Address,
    environment: Mapping[str, str],
    audit: Callable[[str], None],
    tell: Callable[[str], None],
    *,
    streams: Sequence[str] = (),
    max_streams: int = 10_000,
    interval: float = 2.0,
    users: Users | None = None,
    is_writable: bool = False,
    is_https: bool = False,
    has_proxy: bool = False,
    logs: tuple[Path, ...] = (),
    url: str = "",
    decoders: FieldDecoders | None = None,
    oidc: Oidc | None = None,
    mask: Mask | None = None,
) -> Site:
    """Return the console of a server. environment: of the commands that it runs; audit: receives a line for each
    login and change; tell: a line for each problem; the others are as the options of `rstream console`."""
    # A snapshot is never reused: Live asks for the next one when its time has come.
    snapshots = SnapshotCache(address, StreamFilter(streams, max_streams), 0, _SNAPSHOT_SECONDS, tell)
    live = Live(snapshots, interval)
    hidden = mask or Mask()
    log = Audit(audit, hidden)
    changes = Changes({**environment, "RSTREAM_PROGRESS": "json"}, log, live.refresh)
    who = users or Users()
    site = Site(address, live, changes, log, Signer(), who, is_writable, is_https, has_proxy, logs, url)
    return replace(site, decoders=decoders, oidc=oidc, mask=hidden)


class _Server(uvicorn.Server):
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


def serve(
    app: ASGIApp, host: str, port: int, certificate: str | None, key: str | None, begun: Callable[[str], None]
) -> None:
    """Serve the application until a signal. certificate, key: PEM files, for HTTPS; begun: receives the address of the
    console when it listens. Raises ConfigError."""
    bare = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        listener = socket.create_server((bare, port), family=family)
    except OSError as error:
        raise ConfigError(f"the console cannot listen on {host}:{port}: {error.strerror}; use --port") from error
    with listener:
        tls = tls_context(certificate, key) if certificate and key else None
        config = uvicorn.Config(
            app,
            http=type("Connection", (Connection,), {"tls": tls}),
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
        shown = f"[{bare}]" if ":" in bare else bare
        where = f"{'https' if tls else 'http'}://{shown}:{listener.getsockname()[1]}/"
        _Server(config, lambda: begun(where)).run([listener])
