"""Accepts clients: on the configured addresses, up to maxclients, from other machines only with a password."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import selectors
import socket
from pathlib import Path
from typing import Any

from spark_streams.engine.core import Engine
from spark_streams.engine.resp.wire_replies import error
from spark_streams.engine.server.client_connections import Connections
from spark_streams.engine.server.listeners import Listener, open_listeners
from spark_streams.engine.settings import SettingError

_OWN_FILES = 32  # open files in addition to the clients'
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("rstream.engine")


class Acceptor:
    """The listening sockets, registered with the selector. Each accepted client becomes one of the connections."""

    def __init__(self, engine: Engine, selector: selectors.BaseSelector, connections: Connections) -> None:
        self._engine = engine
        self._selector = selector
        self._connections = connections
        self._listeners: list[Listener] = []
        self._spare = -1  # an open file that is released when no file descriptor is left
        self._unix_path: Path | None = None
        self._unix_inode = 0

    def listen(self) -> list[str]:
        """Listen on the configured addresses and return them. Raises SettingError, OSError with the address as name.

        From now on CONFIG SET refuses values that the kernel refuses.
        """
        self._engine.config.on_change("tcp-keepalive", self._try_keep_alive)
        self._listeners = open_listeners(self._engine.config)
        for listener in self._listeners:
            self._selector.register(listener.accepts, selectors.EVENT_READ, listener)
            if listener.accepts.family == socket.AF_UNIX:
                self._unix_path = Path(listener.shown)
                self._unix_inode = self._unix_path.stat().st_ino
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._raise_file_limit(starting=True)
        self._engine.config.on_change("maxclients", self._raise_file_limit)
        return [listener.shown for listener in self._listeners]

    def removed_socket(self) -> Path | None:
        """Return the Unix socket if it was removed or replaced, and no client can come in any more."""
        path = self._unix_path
        if path is None or len(self._listeners) > 1 or self._has_own(path):
            return None
        return path

    def _has_own(self, path: Path) -> bool:
        with contextlib.suppress(OSError):
            return path.stat().st_ino == self._unix_inode
        return False

    def _try_keep_alive(self) -> None:
        """Check that the kernel accepts the value. Raises SettingError."""
        with socket.socket(socket.AF_INET) as probe:
            try:
                _keep_alive(probe, self._engine.config.number("tcp-keepalive"))
            except OSError as problem:
                raise SettingError(f"tcp-keepalive: the system refuses it ({problem.strerror})") from None

    def _raise_file_limit(self, starting: bool = False) -> None:
        """Allow as many open files as maxclients needs.

        If the system allows fewer: at the start, lower maxclients; later, raise SettingError.
        """
        clients = self._engine.config.number("maxclients")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed_files = clients + _OWN_FILES
        if soft == resource.RLIM_INFINITY or soft >= needed_files:
            return
        new_limit = needed_files if hard == resource.RLIM_INFINITY else min(needed_files, hard)
        if new_limit == needed_files or starting:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard))
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft >= needed_files:
            return
        allowed = max(new_limit - _OWN_FILES, 1)
        if not starting:
            raise SettingError(
                f"The operating system is not able to handle the specified number of clients, try with {allowed}"
            )
        allowed = max(soft - _OWN_FILES, 1)
        log.warning("maxclients is reduced to %d: the system allows no more open files (ulimit -n %d)", allowed, soft)
        self._engine.config.fill("maxclients", allowed)

    def accept(self, listener: Listener) -> None:
        """Accept a client."""
        try:
            sock, peer = listener.accepts.accept()
        except OSError as problem:
            if problem.errno in _FULL:
                self._turn_away(listener)
            return
        try:
            self._let_in(listener, sock, peer)
        except OSError as problem:
            # The peer has disconnected, or the system refuses a setting of the connection.
            log.info("closing a connection on %s: %s", listener.shown, problem.strerror or problem)
            sock.close()

    def _let_in(self, listener: Listener, sock: socket.socket, peer: Any) -> None:
        """Add a connection that was accepted, or refuse it. Raises OSError."""
        config = self._engine.config
        sock.setblocking(False)
        refused = ""
        if len(self._connections.by_id) >= config.number("maxclients") and not self._connections.make_room():
            refused = "ERR max number of clients reached"
        if sock.family == socket.AF_UNIX:
            address, local_address = f"{self._unix_path}:0", f"{self._unix_path}:0"
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock, config.number("tcp-keepalive"))
            address, local_address = _address(peer), _address(sock.getsockname())
            if config.flag("protected-mode") and not self._engine.access.has_password and not _is_loopback(peer[0]):
                refused = (
                    "DENIED this server is in protected mode: it has no password (requirepass), so only clients of its "
                    "own machine may come in; protected-mode no lifts that"
                )
        if refused:
            self._engine.connections_rejected += 1
            with contextlib.suppress(OSError):
                sock.send(error(refused.encode()))
            sock.close()
            return
        self._connections.add(listener.dress(sock), address, local_address)

    def _turn_away(self, listener: Listener) -> None:
        """Close a new connection when no file can be opened, by using the spare one; else the selector never rests."""
        self._engine.connections_rejected += 1
        os.close(self._spare)
        with contextlib.suppress(OSError):
            listener.accepts.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        """Stop accepting clients."""
        for listener in self._listeners:
            self._selector.unregister(listener.accepts)
            listener.accepts.close()

    def clean_up(self) -> None:
        """Remove the Unix socket and close the spare file."""
        # Only this engine's socket: another engine may have replaced a socket that was removed.
        if self._unix_path is not None and self._has_own(self._unix_path):
            with contextlib.suppress(OSError):
                self._unix_path.unlink()
        if self._spare >= 0:
            os.close(self._spare)


def _keep_alive(sock: socket.socket, seconds: int) -> None:
    if not seconds:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(seconds // 3, 1))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _address(pair: tuple[str, int]) -> str:
    host, port = pair[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
