"""Listening sockets, and the channel of an accepted connection: plain or TLS."""

from __future__ import annotations

import contextlib
import errno
import os
import socket as sockets
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_streams.engine.settings import Config

if TYPE_CHECKING:
    import ssl


class Channel(Protocol):
    """The part of a connected socket that the server uses. No call blocks; it raises BlockingIOError instead."""

    def recv(self, size: int, /) -> bytes:
        """Return available bytes; b"" at the end."""
        ...

    def send(self, data: bytes | memoryview, /) -> int:
        """Send, and return the number of bytes accepted."""
        ...

    def fileno(self) -> int:
        """Return the file descriptor for the selector."""
        ...

    def close(self) -> None:
        """Close immediately."""
        ...


class Listener(NamedTuple):
    """A listening socket, and the function that makes a channel of an accepted socket."""

    accepts: socket
    dress: Callable[[socket], Channel]
    shown: str


def open_listeners(config: Config) -> list[Listener]:
    """Open all configured listeners. Raises OSError with the address as its file name."""
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
    """Name of a Unix socket until it listens: a client that sees a socket at `path` can then connect to it."""
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
    """Return a bound Unix socket that is not published yet. Raises OSError if another process listens at its path."""
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
    # Imported only if TLS is configured.
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = config.text("tls-cert-file"), config.text("tls-key-file")
    password = config.text("tls-key-file-pass")
    try:
        # An encrypted key without a password must be an error, not a prompt on the terminal.
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
    """A TLS connection that never blocks. The first reads do the handshake."""

    def __init__(self, context: ssl.SSLContext, sock: socket) -> None:
        import ssl

        self._not_now = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._ended = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
        self._socket = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def recv(self, size: int, /) -> bytes:
        """Return all decrypted bytes: the selector does not see bytes that TLS has decrypted already."""
        received: list[bytes] = []
        received_bytes = 0
        while received_bytes < size or self._socket.pending():
            try:
                data = self._socket.recv(max(size - received_bytes, 16384))
            except self._not_now:
                break
            except self._ended:
                return b"".join(received)
            if not data:
                return b"".join(received)
            received.append(data)
            received_bytes += len(data)
        if not received:
            raise BlockingIOError
        return b"".join(received)

    def send(self, data: bytes | memoryview, /) -> int:
        """Send what the kernel accepts, one TLS record at a time."""
        try:
            return self._socket.send(data)
        except self._not_now:
            raise BlockingIOError from None

    def fileno(self) -> int:
        """The socket's own."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close without the closing handshake, as other servers do."""
        self._socket.close()
