"""The sockets: one thread, one selector, non-blocking reads and writes.

Per turn: read what a socket has (up to 256 KB), parse it, run its commands, and write all their replies with one send.
What the kernel does not take stays in the connection's output buffer, and nothing more is read from that connection
until the buffer is small again; nor are more of its pipelined commands run. A slow reader holds up nobody and cannot
make the engine grow without limit.

A connection whose command blocks keeps the commands behind it until its reply has come.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path

from spark_streams.engine.client import Client
from spark_streams.engine.core import Engine
from spark_streams.engine.protocol import RequestParser, TooLongError
from spark_streams.engine.replies import Reply, encode, error

READ_SIZE = 256 * 1024
PAUSE_ABOVE = 8 * 1024 * 1024  # unsent bytes above which a connection is not read from

log = logging.getLogger("rstream.engine")


class Connection:
    """One client's socket with what has been read and not run, and what is to be sent and not sent."""

    __slots__ = ("backlog", "client", "events", "out", "parser", "socket", "unsent")

    def __init__(self, sock: socket.socket, client: Client) -> None:
        self.socket = sock
        self.client = client
        self.parser = RequestParser()
        self.backlog: list[list[bytes]] = []  # commands behind a blocking one
        self.out: list[bytes] = []
        self.unsent = memoryview(b"")
        self.events = selectors.EVENT_READ


class Server:
    """Listens, serves, stops. `idle` seconds without any client end it (None: never)."""

    def __init__(self, engine: Engine, idle: float | None = None, until: Callable[[], bool] = lambda: False) -> None:
        self.engine = engine
        self._idle = idle
        self._until = until  # asked once a second: has the reason to live gone?
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._connections: dict[int, Connection] = {}  # by client id
        self._resumable: list[Connection] = []  # unblocked, with commands behind the one that blocked
        self._pipe = (-1, -1)
        self.unix_path: Path | None = None
        self._unix_inode = 0
        engine.send = self._send_later
        engine.disconnect = self._close_client

    def listen_tcp(self, host: str, port: int) -> int:
        """Listen on a TCP address; the port taken. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        self._listen(listener)
        return int(listener.getsockname()[1])

    def listen_unix(self, path: Path) -> None:
        """Listen on a Unix socket, removed again at the end; a dead one in its place is replaced. Raises OSError."""
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        path.chmod(0o600)
        self.unix_path = path
        self._unix_inode = path.stat().st_ino
        self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        listener.listen(511)
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def stop_soon(self) -> None:
        """End the loop; safe in a signal handler."""
        self.engine.stopping = True
        if self._pipe[1] >= 0:
            os.write(self._pipe[1], b"x")

    def serve(self) -> None:
        """Run until stopped, idle or orphaned."""
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[0], False)
        self._selector.register(self._pipe[0], selectors.EVENT_READ, self._drain_pipe)
        engine = self.engine
        engine.tick()
        last_used = checked = time.monotonic()
        try:
            while not engine.stopping:
                events = self._selector.select(self._patience())
                now = engine.tick()
                for key, mask in events:
                    if isinstance(key.data, Connection):
                        self._handle(key.data, mask)
                    else:
                        key.data(key.fileobj)
                engine.waiters.expire(now)
                if self._resumable:
                    self._resume()
                # The wall clock may jump; how long nobody was there must not.
                moment = time.monotonic()
                if self._connections:
                    last_used = moment
                elif self._idle is not None and moment - last_used >= self._idle:
                    log.info("no client for %g s: stopping", self._idle)
                    break
                if moment - checked >= 1:
                    checked = moment
                    if self._until():
                        break
                    for db in engine.databases:
                        if db.expires:
                            db.drop_expired()
                            engine.serve_ready()
        finally:
            self._close()

    def _patience(self) -> float:
        wait = 1.0 if self._idle is None else min(1.0, self._idle / 4)
        deadline = self.engine.waiters.next_deadline()
        if deadline is not None:
            # Rounded up: waking before the time would spin.
            wait = min(wait, max(deadline - self.engine.clock() + 1, 0) / 1000)
        return wait

    def _drain_pipe(self, fileno: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(fileno, 100)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, peer = listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            address, own = f"{self.unix_path}:0", f"{self.unix_path}:0"
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address, own = f"{peer[0]}:{peer[1]}", "{}:{}".format(*sock.getsockname()[:2])
        connection = Connection(sock, self.engine.connect(address, own))
        self._connections[connection.client.id] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _handle(self, connection: Connection, mask: int) -> None:
        if connection.client.id not in self._connections:
            return  # closed by another one's command in this turn
        if mask & selectors.EVENT_WRITE:
            self._flush(connection)
            if connection.backlog and connection.client.waiter is None and len(connection.unsent) <= PAUSE_ABOVE:
                commands, connection.backlog = connection.backlog, []
                self._run(connection, commands)
        if mask & selectors.EVENT_READ and connection.client.id in self._connections:
            try:
                data = connection.socket.recv(READ_SIZE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._drop(connection)
                return
            self._take(connection, data)

    def _take(self, connection: Connection, data: bytes) -> None:
        commands = connection.parser.feed(data)
        if connection.client.waiter is not None or connection.backlog:
            connection.backlog += commands
            if len(connection.backlog) > 1_000_000:
                self._drop(connection)
            return
        self._run(connection, commands)

    def _run(self, connection: Connection, commands: list[list[bytes]]) -> None:
        client = connection.client
        out = connection.out
        ran = 0
        while ran < len(commands):
            ran += self.engine.run(client, commands[ran:] if ran else commands, out, PAUSE_ABOVE)
            if client.waiter is not None or client.closing:
                break
            if ran < len(commands):
                self._flush(connection)
                if len(connection.unsent) > PAUSE_ABOVE or client.id not in self._connections:
                    break  # the rest when this has been read, or never
        if ran < len(commands):
            connection.backlog = commands[ran:]
            self._flush(connection)
            return
        failure = connection.parser.failure
        if failure is not None and client.waiter is None and not client.closing:
            client.closing = True
            if isinstance(failure, TooLongError):
                log.warning("closing %s: its request is longer than client-query-buffer-limit", client.address)
            else:
                connection.out.append(error(f"ERR Protocol error: {failure}".encode()))
        self._flush(connection)

    def _send_later(self, client: Client, reply: Reply) -> None:
        """A blocked client has its reply: send it. What came behind is run after the command that woke it."""
        connection = self._connections.get(client.id)
        if connection is None:
            return
        connection.out.append(encode(reply, client.resp))
        if connection.backlog or connection.parser.failure is not None:
            self._resumable.append(connection)
        else:
            self._flush(connection)

    def _resume(self) -> None:
        """Run the commands of those who were unblocked, which may unblock others."""
        for connection in self._resumable:  # grows meanwhile
            if connection.client.id in self._connections and connection.client.waiter is None:
                commands, connection.backlog = connection.backlog, []
                self._run(connection, commands)
        self._resumable.clear()

    def _flush(self, connection: Connection) -> None:
        if connection.client.id not in self._connections:
            return
        if connection.out:
            fresh = b"".join(connection.out)
            connection.out.clear()
            connection.unsent = memoryview(bytes(connection.unsent) + fresh if connection.unsent else fresh)
        while connection.unsent:
            try:
                sent = connection.socket.send(connection.unsent)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._drop(connection)
                return
            connection.unsent = connection.unsent[sent:]
        if not connection.unsent and connection.client.closing:
            self._drop(connection)
            return
        events = selectors.EVENT_READ if len(connection.unsent) <= PAUSE_ABOVE else 0
        if connection.unsent:
            events |= selectors.EVENT_WRITE
        if events != connection.events:
            connection.events = events
            self._selector.modify(connection.socket, events, connection)

    def _close_client(self, client: Client) -> None:
        connection = self._connections.get(client.id)
        if connection is not None:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.client.id, None) is None:
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self.engine.forget(connection.client)

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        with contextlib.suppress(OSError):
            # Only our own: another engine may have taken the place of a socket that was removed under us.
            if self.unix_path is not None and self.unix_path.stat().st_ino == self._unix_inode:
                self.unix_path.unlink()
        self._selector.close()
        for fileno in self._pipe:
            if fileno >= 0:
                os.close(fileno)
