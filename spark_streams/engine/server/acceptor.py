"""Letting clients in: where the settings say, as many as they allow, from other machines only with a password."""

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
from spark_streams.engine.resp.replies import error
from spark_streams.engine.server.connections import Connections
from spark_streams.engine.server.listeners import Listener, open_listeners
from spark_streams.engine.settings.table import SettingError

_OWN_FILES = 32  # open files beside the clients'
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger("rstream.engine")


class Acceptor:
    """The sockets that are listened on, known to the selector; who comes in is one of the connections."""

    def __init__(self, engine: Engine, selector: selectors.BaseSelector, connections: Connections) -> None:
        self._engine = engine
        self._selector = selector
        self._connections = connections
        self._listeners: list[Listener] = []
        self._spare = -1  # an open file to give away when there are no more
        self._unix_path: Path | None = None
        self._unix_inode = 0

    def listen(self) -> list[str]:
        """Listen where the settings say; the addresses. Raises OSError with the address as its file name, SettingError.

        From now on CONFIG SET refuses what the kernel refuses.
        """
        self._engine.config.when("tcp-keepalive", self._try_keep_alive)
        self._listeners = open_listeners(self._engine.config)
        for listener in self._listeners:
            self._selector.register(listener.accepts, selectors.EVENT_READ, listener)
            if listener.accepts.family == socket.AF_UNIX:
                self._unix_path = Path(listener.shown)
                self._unix_inode = self._unix_path.stat().st_ino
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self._make_room(starting=True)
        self._engine.config.when("maxclients", self._make_room)
        return [listener.shown for listener in self._listeners]

    def _try_keep_alive(self) -> None:
        """Ask the kernel before a client's connection does. Raises SettingError."""
        with socket.socket(socket.AF_INET) as probe:
            try:
                _keep_alive(probe, self._engine.config.number("tcp-keepalive"))
            except OSError as problem:
                raise SettingError(f"tcp-keepalive: the system refuses it ({problem.strerror})") from None

    def _make_room(self, starting: bool = False) -> None:
        """As many open files as maxclients needs. If the system allows fewer: at the start fewer clients, later
        SettingError."""
        clients = self._engine.config.number("maxclients")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = clients + _OWN_FILES
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if most == wanted or starting:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft >= wanted:
            return
        allowed = max(most - _OWN_FILES, 1)
        if not starting:
            raise SettingError(
                f"The operating system is not able to handle the specified number of clients, try with {allowed}"
            )
        allowed = max(soft - _OWN_FILES, 1)
        log.warning("maxclients is %d: no more files may be open (ulimit -n %d)", allowed, soft)
        self._engine.config.fill("maxclients", allowed)

    def accept(self, listener: Listener) -> None:
        """Somebody wants to come in."""
        try:
            sock, peer = listener.accepts.accept()
        except OSError as problem:
            if problem.errno in _FULL:
                self._turn_away(listener)
            return
        try:
            self._let_in(listener, sock, peer)
        except OSError as problem:
            # The peer has gone already, or the system refuses a setting of its connection.
            log.info("closing a connection on %s: %s", listener.shown, problem.strerror or problem)
            sock.close()

    def _let_in(self, listener: Listener, sock: socket.socket, peer: Any) -> None:
        """A connection that was accepted. Raises OSError."""
        config = self._engine.config
        sock.setblocking(False)
        refused = ""
        if len(self._connections.by_id) >= config.number("maxclients"):
            refused = "ERR max number of clients reached"
        if sock.family == socket.AF_UNIX:
            address, own = f"{self._unix_path}:0", f"{self._unix_path}:0"
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock, config.number("tcp-keepalive"))
            address, own = _address(peer), _address(sock.getsockname())
            if config.flag("protected-mode") and not self._engine.access.closed and not _is_loopback(peer[0]):
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
        self._connections.add(listener.dress(sock), address, own)

    def _turn_away(self, listener: Listener) -> None:
        """No file can be opened any more: use the spare one to hang up, or the selector would not stop asking."""
        self._engine.connections_rejected += 1
        os.close(self._spare)
        with contextlib.suppress(OSError):
            listener.accepts.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        """Nobody comes in any more."""
        for listener in self._listeners:
            self._selector.unregister(listener.accepts)
            listener.accepts.close()

    def clean_up(self) -> None:
        """Leave no socket behind."""
        with contextlib.suppress(OSError):
            # Only our own: another engine may have taken the place of a socket that was removed under us.
            if self._unix_path is not None and self._unix_path.stat().st_ino == self._unix_inode:
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
