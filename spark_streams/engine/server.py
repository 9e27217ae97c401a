"""The connections: one thread, one selector, non-blocking reads and writes.

Per turn: read what a socket has (up to 256 KB), parse it, run its commands, and write all their replies with one send;
single small replies are sent at the end of the turn.
What the kernel does not take stays in the connection's output buffer, and nothing more is read from that connection
until the buffer is small again; nor are more of its pipelined commands run. A slow reader holds up nobody and cannot
make the engine grow without limit.

A connection whose command blocks keeps the commands behind it until its reply has come. Once a second everybody is
looked over: who has been idle for too long, or has not read for too long.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import resource
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path

from spark_streams.engine.client import Client
from spark_streams.engine.core import Engine
from spark_streams.engine.listeners import Channel, Listener, open_listeners
from spark_streams.engine.protocol import RequestParser
from spark_streams.engine.replies import Reply, encode, error
from spark_streams.engine.requests import BEFORE_AUTH, Request, TooLongError, size_of

READ_SIZE = 256 * 1024
READ_LITTLE = 64 * 1024  # unless the last read was as much: room for more costs system calls of its own
PAUSE_ABOVE = 8 * 1024 * 1024  # unsent bytes above which a connection is not read from
FLUSH_AT_END = 1.0  # seconds for clients to take what is still to be sent when the server stops
_IDLE_BEFORE_TIDYING = 0.9  # seconds without a request after which garbage is collected and cold data packed
_OWN_FILES = 32  # open files beside the clients'
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# Replies below so many bytes are sent when all ready sockets are served: a send wakes the client up, who then competes.
_SMALL_REPLY = 512

log = logging.getLogger("rstream.engine")


def _sweep() -> None:
    """Collect all garbage, and leave out what is left until the next time."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Connection:
    """One client's socket with what has been read and not run, and what is to be sent and not sent."""

    __slots__ = ("backlog", "backlog_bytes", "channel", "client", "events", "late", "out", "parser", "read_size",
                 "slow_since", "unsent")  # fmt: skip

    def __init__(self, channel: Channel, client: Client, parser: RequestParser) -> None:
        self.channel = channel
        self.client = client
        self.parser = parser
        self.backlog: list[Request] = []  # commands behind a blocking one
        self.backlog_bytes = 0  # about what they take
        self.read_size = READ_LITTLE
        self.out: list[bytes] = []  # replies since the last flush
        self.unsent = memoryview(b"")  # what the kernel has not taken
        self.late = bytearray()  # what came after that
        self.slow_since = 0.0  # since when more is unsent than the soft limit; 0: it is not
        self.events = selectors.EVENT_READ

    @property
    def waiting(self) -> int:
        """Bytes to be sent."""
        return len(self.unsent) + len(self.late)


class Server:
    """Listens, serves, stops. `idle` seconds without any client end it (None: never)."""

    def __init__(self, engine: Engine, idle: float | None = None, until: Callable[[], bool] = lambda: False) -> None:
        self.engine = engine
        self._idle = idle
        self._until = until  # asked once a second: has the reason to live gone?
        self._selector = selectors.DefaultSelector()
        self._listeners: list[Listener] = []
        self._connections: dict[int, Connection] = {}  # by client id
        self._held: list[Connection] = []  # their replies wait for the end of the turn, or until what they tell is kept
        self._resumable: list[Connection] = []  # unblocked, with commands behind the one that blocked
        self._postponed: list[Connection] = []  # held up by CLIENT PAUSE
        self._spare = -1  # an open file to give away when there are no more
        self._pipe = (-1, -1)
        self.unix_path: Path | None = None
        self._unix_inode = 0
        engine.send = self._send_later
        engine.wake = self._wake
        engine.disconnect = self._close_client
        engine.memory.buffers = self._buffered
        engine.describe_buffers = self._describe_buffers

    def listen(self) -> list[str]:
        """Listen where the settings say; the addresses. Raises OSError with the address as its file name."""
        self._listeners = open_listeners(self.engine.config)
        for listener in self._listeners:
            self._selector.register(listener.accepts, selectors.EVENT_READ, listener)
            if listener.accepts.family == socket.AF_UNIX:
                self.unix_path = Path(listener.shown)
                self._unix_inode = self.unix_path.stat().st_ino
        self._spare = os.open(os.devnull, os.O_RDONLY)
        self.engine.config.when("maxclients", self._make_room)
        return [listener.shown for listener in self._listeners]

    def _make_room(self) -> None:
        """As many open files as maxclients needs, or maxclients as the system allows."""
        clients = self.engine.config.number("maxclients")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = clients + _OWN_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(ValueError, OSError):
                soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            if soft < wanted:
                log.warning("maxclients is %d: no more files may be open (ulimit -n %d)", soft - _OWN_FILES, soft)
                self.engine.config.fill("maxclients", max(soft - _OWN_FILES, 1))

    def stop_soon(self) -> None:
        """End the loop; safe in a signal handler."""
        self.engine.stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._pipe[1] >= 0:
            with contextlib.suppress(OSError):
                os.write(self._pipe[1], b"x")

    def serve(self) -> None:
        """Run until stopped, idle or orphaned."""
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[0], False)
        self._selector.register(self._pipe[0], selectors.EVENT_READ)
        engine = self.engine
        engine.tick()
        last_used = last_busy = checked = time.monotonic()
        packing = swept = False
        try:
            while not engine.stopping:
                events = self._selector.select(0 if packing else self._patience())
                now = engine.tick()
                if events:
                    packing, swept, last_busy = False, False, time.monotonic()
                elif time.monotonic() - last_busy >= _IDLE_BEFORE_TIDYING:
                    if not swept:
                        swept = True
                        _sweep()
                    engine.node_limits.shelf.pack(0.005)
                    packing = bool(engine.node_limits.shelf)
                for key, mask in events:
                    if isinstance(key.data, Connection):
                        self._handle(key.data, mask)
                    elif isinstance(key.data, Listener):
                        self._accept(key.data)
                    else:
                        self._drain_pipe()
                engine.waiters.expire(now)
                if engine.paused_until and now >= engine.paused_until:
                    self._unpause()
                if self._resumable:
                    self._resume()
                self._commit()
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
                    self._look_over(moment)
                    for db in engine.databases:
                        if db.expires and engine.active_expire:
                            db.drop_expired()
                            engine.serve_ready()
                    self._commit()
                    engine.persistence.cron()
                elif engine.persistence.busy:
                    engine.persistence.cron()
        finally:
            self._close()

    def _patience(self) -> float:
        wait = 1.0 if self._idle is None else min(1.0, self._idle / 4)
        deadline = self.engine.waiters.next_deadline()
        if self.engine.paused_until and (deadline is None or self.engine.paused_until < deadline):
            deadline = self.engine.paused_until
        if deadline is not None:
            # Rounded up: waking before the time would spin.
            wait = min(wait, max(deadline - self.engine.clock() + 1, 0) / 1000)
        return wait

    def _commit(self) -> None:
        """Keep what has changed, then let out the replies that tell of it."""
        self.engine.commit()
        while self._held:
            held, self._held = self._held, []
            for connection in held:
                self._flush(connection)

    def _drain_pipe(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe[0], 100)

    def _accept(self, listener: Listener) -> None:
        try:
            sock, peer = listener.accepts.accept()
        except OSError as problem:
            if problem.errno in _FULL:
                self._turn_away(listener)
            return
        config = self.engine.config
        sock.setblocking(False)
        refused = ""
        if len(self._connections) >= config.number("maxclients"):
            refused = "ERR max number of clients reached"
        if sock.family == socket.AF_UNIX:
            address, own = f"{self.unix_path}:0", f"{self.unix_path}:0"
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock, config.number("tcp-keepalive"))
            address, own = _address(peer), _address(sock.getsockname())
            if config.flag("protected-mode") and not self.engine.access.closed and not _is_loopback(peer[0]):
                refused = (
                    "DENIED this server is in protected mode: it has no password (requirepass), so only clients of its "
                    "own machine may come in; protected-mode no lifts that"
                )
        try:
            if refused:
                self.engine.connections_rejected += 1
                with contextlib.suppress(OSError):
                    sock.send(error(refused.encode()))
                sock.close()
                return
            channel = listener.dress(sock)
        except OSError:
            sock.close()
            return
        client = self.engine.connect(address, own)
        parser = RequestParser(config.requests if client.authenticated else BEFORE_AUTH, self.engine.shapes)
        connection = Connection(channel, client, parser)
        self._connections[client.id] = connection
        self._selector.register(channel, selectors.EVENT_READ, connection)

    def _turn_away(self, listener: Listener) -> None:
        """No file can be opened any more: use the spare one to hang up, or the selector would not stop asking."""
        self.engine.connections_rejected += 1
        os.close(self._spare)
        with contextlib.suppress(OSError):
            listener.accepts.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _look_over(self, moment: float) -> None:
        """Once a second: close who is idle, or does not read, for too long."""
        config, now = self.engine.config, self.engine.now
        idle, soft = config.number("timeout") * 1000, config.output.soft
        if not idle and not soft:
            return
        for connection in list(self._connections.values()):
            client = connection.client
            if idle and client.waiter is None and now - client.last_seen > idle:
                log.info("closing %s: idle for %d s", client.address, (now - client.last_seen) // 1000)
                self._drop(connection)
            elif connection.unsent and self._reads_too_slowly(connection, moment):
                self._drop(connection)

    def _reads_too_slowly(self, connection: Connection, moment: float) -> bool:
        limit, waiting = self.engine.config.output, connection.waiting
        too_slow = bool(limit.hard) and waiting > limit.hard
        if not limit.soft or waiting <= limit.soft:
            connection.slow_since = 0.0
        elif not connection.slow_since:
            connection.slow_since = moment
        elif moment - connection.slow_since > limit.seconds:
            too_slow = True
        if too_slow:
            log.warning("closing %s: %d bytes unread (client-output-buffer-limit)", connection.client.address, waiting)
        return too_slow

    def _buffered(self) -> int:
        """Bytes that wait in connections, read and written."""
        return sum(one.parser.held + one.backlog_bytes + one.waiting for one in self._connections.values())

    def _describe_buffers(self, client: Client) -> tuple[int, int]:
        """Of one client: bytes read and not run, bytes to be sent."""
        connection = self._connections.get(client.id)
        if connection is None:
            return 0, 0
        return connection.parser.held + connection.backlog_bytes, connection.waiting

    def _handle(self, connection: Connection, mask: int) -> None:
        if connection.client.id not in self._connections:
            return  # closed by another one's command in this turn
        if mask & selectors.EVENT_WRITE:
            if connection.backlog:
                self.engine.commit()
            self._flush(connection)
            client = connection.client
            if connection.backlog and client.waiter is None and not client.postponed and self._has_room(connection):
                self._run_backlog(connection)
        if mask & selectors.EVENT_READ and connection.client.id in self._connections:
            try:
                data = connection.channel.recv(connection.read_size)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._drop(connection)
                return
            connection.read_size = READ_LITTLE if len(data) < READ_LITTLE else READ_SIZE
            self._take(connection, data)

    def _has_room(self, connection: Connection) -> bool:
        return connection.waiting <= PAUSE_ABOVE

    def _take(self, connection: Connection, data: bytes) -> None:
        parser = connection.parser
        if parser.limits is BEFORE_AUTH:
            self._take_unauthenticated(connection, data)
            return
        commands = parser.feed(data)
        if connection.client.waiter is not None or connection.backlog:
            connection.backlog += commands
            connection.backlog_bytes += len(data) + 100 * len(commands)
            if connection.backlog_bytes > parser.limits.held:
                log.warning("closing %s: too much behind a command that waits", connection.client.address)
                self._drop(connection)
            return
        self._run(connection, commands)

    def _take_unauthenticated(self, connection: Connection, data: bytes) -> None:
        """Command by command, because after AUTH more is allowed."""
        parser, client = connection.parser, connection.client
        while True:
            commands = parser.feed(data)
            if client.authenticated or not self.engine.access.closed:
                parser.limits = self.engine.config.requests
            self._run(connection, commands)
            if client.closing or client.id not in self._connections or not commands:
                return
            data = b""
            if client.authenticated:
                parser.limits = self.engine.config.requests
                if parser.held:
                    self._take(connection, data)
                return

    def _run_backlog(self, connection: Connection) -> None:
        commands, connection.backlog, connection.backlog_bytes = connection.backlog, [], 0
        self._run(connection, commands)

    def _run(self, connection: Connection, commands: list[Request]) -> None:
        client = connection.client
        out = connection.out
        ran = 0
        while ran < len(commands):
            ran = self.engine.run(client, commands, out, PAUSE_ABOVE, ran)
            if client.waiter is not None or client.closing:
                break
            if client.postponed:
                self._postponed.append(connection)
                break
            if ran < len(commands):
                self.engine.commit()
                self._flush(connection)
                if not self._has_room(connection) or client.id not in self._connections:
                    break  # the rest when this has been read, or never
        if ran < len(commands):
            connection.backlog = commands[ran:]
            connection.backlog_bytes = sum(map(size_of, connection.backlog))
            self._flush(connection)
            return
        failure = connection.parser.failure
        if failure is not None and client.waiter is None and not client.closing:
            client.closing = True
            if isinstance(failure, TooLongError):
                log.warning("closing %s: its request is longer than client-query-buffer-limit", client.address)
            else:
                connection.out.append(error(f"ERR Protocol error: {failure}".encode()))
        if len(connection.out) == 1 and len(connection.out[0]) < _SMALL_REPLY:
            self._held.append(connection)
        else:
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
            self._held.append(connection)

    def _resume(self) -> None:
        """Run the commands of those who were unblocked, which may unblock others."""
        for connection in self._resumable:  # grows meanwhile
            if connection.client.id in self._connections and connection.client.waiter is None:
                self._run_backlog(connection)
        self._resumable.clear()

    def _unpause(self) -> None:
        self.engine.paused_until = 0
        held, self._postponed = self._postponed, []
        for connection in held:
            connection.client.postponed = False
        self._resumable += held

    def _flush(self, connection: Connection) -> None:
        if connection.client.id not in self._connections:
            return
        if connection.out:
            if self.engine.journal is not None and self.engine.journal.parts:
                self._held.append(connection)
                return
            fresh = b"".join(connection.out) if len(connection.out) > 1 else connection.out[0]
            connection.out.clear()
            if connection.unsent:
                connection.late += fresh
            elif self._is_sent_at_once(connection, fresh):
                return
        while connection.unsent:
            try:
                sent = connection.channel.send(connection.unsent)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._drop(connection)
                return
            connection.unsent = connection.unsent[sent:]
            if not connection.unsent and connection.late:
                connection.unsent, connection.late = memoryview(connection.late), bytearray()
        if not connection.unsent and connection.client.closing:
            self._drop(connection)
            return
        if connection.unsent and self._reads_too_slowly(connection, time.monotonic()):
            self._drop(connection)
            return
        events = selectors.EVENT_READ if self._has_room(connection) else 0
        if connection.unsent:
            events |= selectors.EVENT_WRITE
        if events != connection.events:
            connection.events = events
            self._selector.modify(connection.channel, events, connection)

    def _is_sent_at_once(self, connection: Connection, data: bytes) -> bool:
        """Whether the kernel takes all of it and nothing else is to be done, as it is nearly always."""
        if connection.events == selectors.EVENT_READ and not connection.client.closing:
            try:
                sent = connection.channel.send(memoryview(data))
            except OSError:
                sent = 0  # why, the second attempt will tell
            if sent == len(data):
                return True
            data = data[sent:]
        connection.unsent = memoryview(data)
        return False

    def _close_client(self, client: Client) -> None:
        connection = self._connections.get(client.id)
        if connection is not None:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.client.id, None) is None:
            return
        self._selector.unregister(connection.channel)
        connection.channel.close()
        self.engine.forget(connection.client)

    def _close(self) -> None:
        for listener in self._listeners:
            self._selector.unregister(listener.accepts)
            listener.accepts.close()
        self._send_the_rest()
        for connection in list(self._connections.values()):
            self._drop(connection)
        with contextlib.suppress(OSError):
            # Only our own: another engine may have taken the place of a socket that was removed under us.
            if self.unix_path is not None and self.unix_path.stat().st_ino == self._unix_inode:
                self.unix_path.unlink()
        self._selector.close()
        for fileno in (*self._pipe, self._spare):
            if fileno >= 0:
                os.close(fileno)

    def _send_the_rest(self) -> None:
        """Replies that are still to be sent, to those who read them soon."""
        until = time.monotonic() + FLUSH_AT_END
        for connection in list(self._connections.values()):
            connection.client.closing = True  # dropped when all is sent
            self._flush(connection)
        while self._connections and (left := until - time.monotonic()) > 0:
            for key, mask in self._selector.select(left):
                if isinstance(key.data, Connection) and key.data.client.id in self._connections:
                    if mask & selectors.EVENT_READ:
                        self._selector.modify(key.data.channel, selectors.EVENT_WRITE, key.data)
                        key.data.events = selectors.EVENT_WRITE
                    self._flush(key.data)


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
