"""Sockets to listen on, and what a connection's socket is like once accepted: plain or TLS."""

from __future__ import annotations

import contextlib
import errno
import os
import socket as sockets
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_streams.engine.settings.config import Config

if TYPE_CHECKING:
    import ssl


class Channel(Protocol):
    """What the server needs of a connected socket; nothing blocks, BlockingIOError says "not now"."""

    def recv(self, size: int, /) -> bytes:
        """What has arrived; b"" at the end."""
        ...

    def send(self, data: memoryview, /) -> int:
        """How much was taken."""
        ...

    def fileno(self) -> int:
        """For the selector."""
        ...

    def close(self) -> None:
        """At once."""
        ...


class Listener(NamedTuple):
    """A socket to accept from, and how its connections are dressed."""

    accepts: socket
    dress: Callable[[socket], Channel]
    shown: str


def open_listeners(config: Config) -> list[Listener]:
    """All that the settings ask for. Raises OSError with the address as its file name."""
    opened: list[Listener] = []
    try:
        backlog = config.number("tcp-backlog")
        path = config.text("unixsocket")
        if path:
            with _named(path):
                opened.append(Listener(_unix(path, config.number("unixsocketperm")), _plain, path))
        if config.number("tls-port"):
            context = _tls_context(config)
        for name, dress in (("port", _plain), ("tls-port", lambda sock: TlsChannel(context, sock))):
            port = config.number(name)
            for host in config.text("bind").split() if port else ():
                shown = f"{host}:{port}" + (" (TLS)" if name == "tls-port" else "")
                with _named(shown):
                    opened.append(Listener(_tcp(host, port), dress, shown))
        for listener in opened:
            listener.accepts.listen(backlog)
            listener.accepts.setblocking(False)
        if path:
            _unpublished(path).rename(path)
    except BaseException:
        for listener in opened:
            listener.accepts.close()
        if path:
            _unpublished(path).unlink(missing_ok=True)
        raise
    return opened


def _unpublished(path: str) -> Path:
    """The name of a Unix socket until it listens: whoever finds a socket under `path` can connect to it."""
    return Path(path).with_name(f".{os.getpid()}")


@contextlib.contextmanager
def _named(address: str):  # type: ignore[no-untyped-def]
    try:
        yield
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror or str(problem), address) from None


def _tcp(host: str, port: int) -> socket:
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    listener = socket(family)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        if family == sockets.AF_INET6:
            listener.setsockopt(sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY, 1)
        listener.bind(("" if host == "*" else host, port))
    except BaseException:
        listener.close()
        raise
    return listener


def _unix(path: str, mode: int) -> socket:
    """A Unix socket that is not published yet. Raises OSError if another process listens at its path."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), socket(sockets.AF_UNIX) as probe:
        probe.connect(path)
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    name = _unpublished(path)
    name.unlink(missing_ok=True)
    listener = socket(sockets.AF_UNIX)
    try:
        listener.bind(str(name))
        if mode:
            name.chmod(mode)
    except BaseException:
        listener.close()
        raise
    return listener


def _plain(sock: socket) -> Channel:
    return sock


def _tls_context(config: Config) -> ssl.SSLContext:
    # Only who asks for TLS pays for its import.
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key = config.text("tls-cert-file"), config.text("tls-key-file")
    password = config.text("tls-key-file-pass")
    try:
        # Without a password an encrypted key must be an error, not a question on the terminal.
        context.load_cert_chain(certificate, key, lambda: password)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror or str(problem), f"TLS with {certificate} and {key}") from None
    clients = config.text("tls-auth-clients")
    authorities = config.text("tls-ca-cert-file")
    if clients != "no":
        context.verify_mode = ssl.CERT_REQUIRED if clients == "yes" else ssl.CERT_OPTIONAL
    if authorities:
        try:
            context.load_verify_locations(authorities)
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror or str(problem), f"TLS with {authorities}") from None
    return context


class TlsChannel:
    """A TLS connection that never blocks. Its handshake happens in the first reads."""

    def __init__(self, context: ssl.SSLContext, sock: socket) -> None:
        import ssl

        self._not_now = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._ended = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
        self._socket = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def recv(self, size: int, /) -> bytes:
        """All that has been decrypted, too: the selector sees only what is still in the kernel."""
        received: list[bytes] = []
        got = 0
        while got < size or self._socket.pending():
            try:
                data = self._socket.recv(max(size - got, 16384))
            except self._not_now:
                break
            except self._ended:
                return b"".join(received)
            if not data:
                return b"".join(received)
            received.append(data)
            got += len(data)
        if not received:
            raise BlockingIOError
        return b"".join(received)

    def send(self, data: memoryview, /) -> int:
        """As much as the kernel takes; a record at a time."""
        try:
            return self._socket.send(data)
        except self._not_now:
            raise BlockingIOError from None

    def fileno(self) -> int:
        """The socket's own."""
        return self._socket.fileno()

    def close(self) -> None:
        """Without the closing handshake, as other servers do."""
        self._socket.close()
