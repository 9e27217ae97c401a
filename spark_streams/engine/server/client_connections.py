"""Clients' connections: reading, running commands, and sending replies.

Per turn: read from the socket (up to 256 KB), parse, run the commands, and write all their replies with one send. A
single small reply is sent at the end of the turn. If the commands take longer than a slice, the other connections get
their turn before the rest runs, and nothing is read from this connection until then.

Replies that the kernel does not accept stay here. While they exceed a limit, no more commands run: arriving bytes are
stored in `unparsed`, so that a client may send everything before it reads. A slow reader therefore delays no other
client, and needs at most client-query-buffer-limit of memory. A client that disconnects without reading is noticed at
the end of its input; its commands still run.

Commands behind one that blocks wait in the same way until its reply is sent.
"""

from __future__ import annotations

import logging
import math
import selectors
import time

from spark_streams.engine.client import Client
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.request_parser import BEFORE_AUTH, Request, RequestParser, TooLongError
from spark_streams.engine.resp.wire_replies import Reply, encode, error
from spark_streams.engine.server.joint_batch import LONGEST, JointBatches
from spark_streams.engine.server.listeners import Channel
from spark_streams.engine.settings import OutputLimit


class ConnectionOutput:
    """Replies to send, and bytes that the kernel has not accepted yet."""

    __slots__ = ("_channel", "_late", "_slow_since", "fresh", "unsent")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.fresh: list[bytes] = []  # replies since the last flush
        self.unsent = memoryview(b"")  # bytes that the kernel has not accepted
        self._late = bytearray()  # bytes behind those
        self._slow_since = 0.0  # time.monotonic() since when the soft limit is exceeded; 0: it is not

    @property
    def waiting(self) -> int:
        """Number of bytes that the kernel has not accepted."""
        return len(self.unsent) + len(self._late)

    def send(self) -> None:
        """Send what the kernel accepts. Raises OSError if the peer has disconnected."""
        if self.fresh:
            data = b"".join(self.fresh) if len(self.fresh) > 1 else self.fresh[0]
            self.fresh.clear()
            if self.unsent:
                self._late += data
            else:
                # Without a memoryview: the kernel accepts nearly every reply at once.
                sent = self._send(data)
                if sent < len(data):
                    self.unsent = memoryview(data)[sent:]
                return
        while self.unsent:
            sent = self._send(self.unsent)
            if not sent:
                return
            self.unsent = self.unsent[sent:]
            if not self.unsent and self._late:
                self.unsent, self._late = memoryview(self._late), bytearray()

    def _send(self, data: bytes | memoryview) -> int:
        """Return how many bytes the kernel has accepted."""
        try:
            return self._channel.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def drop(self) -> None:
        """Discard all output: the peer has disconnected."""
        self.fresh.clear()
        self.unsent, self._late = memoryview(b""), bytearray()

    def is_read_too_slowly(self, limit: OutputLimit, moment: float) -> bool:
        """Whether more output waits than the limit allows, or for too long."""
        waiting = self.waiting
        too_slow = bool(limit.hard) and waiting > limit.hard
        if not limit.soft or waiting <= limit.soft:
            self._slow_since = 0.0
        elif not self._slow_since:
            self._slow_since = moment
        elif moment - self._slow_since > limit.seconds:
            too_slow = True
        return too_slow


READ_SIZE = 256 * 1024
READ_LITTLE = 64 * 1024  # unless the last read returned as much: a larger buffer costs system calls
PAUSE_ABOVE = 8 * 1024 * 1024  # unsent bytes above which a connection's commands wait
UNREAD_BEFORE_AUTH = 16 * 1024  # unsent bytes above which a client that is not logged in is closed
SLICE_SECONDS = 0.002  # time of one connection per turn
PER_CONNECTION = 3000  # approximate bytes of the objects of a connection
PER_REQUEST = 100  # approximate bytes that Python needs for each request
SHORT = 4096  # bytes that run in the turn in which they arrive, however long the turn has taken

# Smaller replies are sent after all ready sockets are served: a send wakes the client, which then competes for the CPU.
_SMALL_REPLY = 512

log = logging.getLogger("rstream.engine")


class ClientConnection:
    """One client's socket, its input that has not run, and its output that is not sent."""

    __slots__ = ("backlog", "backlog_bytes", "channel", "client", "closed", "connections", "engine", "events", "output",
                 "parser", "peer_closed", "queued", "read_size", "unparsed")  # fmt: skip

    def __init__(self, channel: Channel, client: Client, parser: RequestParser, connections: Connections) -> None:
        self.channel = channel
        self.client = client
        self.parser = parser
        self.connections = connections  # all connections, this one included until it is closed
        self.engine = connections.engine
        self.closed = False
        self.peer_closed = False  # the peer has closed, and its input still has to run
        self.backlog: list[Request] = []  # commands that were parsed and wait
        self.backlog_bytes = 0  # approximate size of their input
        self.unparsed = bytearray()  # input after the backlog
        self.queued = False  # registered in connections.unfinished
        self.read_size = READ_LITTLE
        self.output = ConnectionOutput(channel)
        self.events = selectors.EVENT_READ

    @property
    def unrun_bytes(self) -> int:
        """Approximate bytes of memory of requests that have not run."""
        read = self.backlog_bytes + PER_REQUEST * len(self.backlog) if self.backlog else 0
        return self.parser.held + read + len(self.unparsed)

    @property
    def memory(self) -> int:
        """Approximate bytes of memory of the connection and of what is kept for its client."""
        return PER_CONNECTION + self.unrun_bytes + self.waiting + self.client.kept_bytes

    @property
    def waiting(self) -> int:
        """Number of bytes to be sent."""
        return self.output.waiting

    @property
    def has_more(self) -> bool:
        """Whether commands wait."""
        return bool(self.backlog or self.unparsed or self.parser.unread)

    @property
    def may_run(self) -> bool:
        """Whether commands may run now."""
        client = self.client
        return not (self.closed or client.closing or client.waiter is not None) and (
            self.peer_closed or self.waiting <= PAUSE_ABOVE
        )

    # Reading and running

    def handle(self, mask: int) -> None:
        """Read from or write to the socket, as the selector's event mask says."""
        if self.closed:
            return  # closed by another client's command in this turn
        if mask & selectors.EVENT_WRITE:
            if self.has_more:
                self.engine.commit()
            self.flush()
        if mask & selectors.EVENT_READ and not (self.closed or self.peer_closed or self.queued):
            try:
                data = self.channel.recv(self.read_size)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._end()
                return
            self.read_size = READ_LITTLE if len(data) < READ_LITTLE else READ_SIZE
            self._take(data)

    def _take(self, data: bytes) -> None:
        # The fields of `has_more` and `waiting` without their calls: these lines run for each read.
        behind = self.backlog or self.unparsed or self.parser.unread
        if behind or self.client.waiter is not None or (self.output.unsent and self.waiting > PAUSE_ABOVE):
            self.unparsed += data
            if len(self.unparsed) > self.parser.limits.held:
                cause = "a command that waits" if self.client.waiter is not None else "replies that are not read"
                log.warning("closing %s: too much behind %s (client-query-buffer-limit)", self.client.address, cause)
                self.close()
        elif len(data) > SHORT and time.perf_counter() > self.connections.turn_ends:
            self.unparsed += data
            self._watch()
        elif not (self.connections.joint.active and len(data) <= LONGEST and self.connections.joint.take(self, data)):
            self._run(self._parse(data))

    def run_alone(self, data: bytes) -> None:
        """Run a request that has waited for others."""
        if not self.closed:
            self._run(self._parse(data))

    def reply_later(self, reply: bytes) -> None:
        """Send a reply at the end of the turn."""
        self.output.fresh.append(reply)
        self.connections.to_flush.append(self)

    def _parse(self, data: bytes) -> list[Request]:
        engine, parser = self.engine, self.parser
        unauthenticated = engine.access.needed and engine.access.must_authenticate(self.client)
        parser.limits = BEFORE_AUTH if unauthenticated else engine.config.requests
        held = parser.held
        requests = parser.feed(data)
        if len(requests) > 1:  # a single command leaves no backlog
            self.backlog_bytes = max(held + len(data) - parser.held, 0)
        return requests

    def _end(self) -> None:
        """Handle the end of the input. Commands still run if they only wait for replies to be read."""
        self.peer_closed = True
        if self.has_more and self.may_run:
            self.output.drop()
            self._watch()
        else:
            self.close()

    def run_backlog(self) -> None:
        """Run a slice of the waiting input: the parsed commands, or the next bytes after them."""
        commands, self.backlog = self.backlog, []
        if not commands:
            data = b""
            if not self.parser.unread:
                data = bytes(memoryview(self.unparsed)[:READ_SIZE])
                del self.unparsed[:READ_SIZE]
            commands = self._parse(data)
        self._run(commands)
        if self.peer_closed and not self.has_more:
            self.close()
        elif not self.closed:
            self._watch()

    def _run(self, commands: list[Request]) -> None:
        client = self.client
        out = self.output.fresh
        run_count = 0
        if commands:
            until = time.perf_counter() + SLICE_SECONDS if len(commands) > 1 else math.inf
            run_count = self.engine.run(client, commands, out, PAUSE_ABOVE, 0, until)
        if run_count < len(commands):
            self.backlog = commands[run_count:]
            self.backlog_bytes = self.backlog_bytes * len(self.backlog) // len(commands)
            self.flush()
            return
        failure = self.parser.failure
        if failure is not None and client.waiter is None and not client.closing:
            client.closing = True
            if isinstance(failure, TooLongError):
                log.warning("closing %s: its request is longer than client-query-buffer-limit", client.address)
            else:
                self.output.fresh.append(error(f"ERR Protocol error: {failure}".encode()))
        if len(out) == 1 and len(out[0]) < _SMALL_REPLY:
            self.connections.to_flush.append(self)
        else:
            self.flush()

    # Sending

    def flush(self) -> None:
        """Send what the kernel accepts. Replies about a change wait until the change is written."""
        if self.closed:
            return
        output = self.output
        if output.fresh and self.engine.journal is not None and self.engine.journal.parts:
            self.connections.to_flush.append(self)
            return
        if self.peer_closed:
            output.drop()
        try:
            output.send()
        except OSError:
            self._end()
            return
        if self.is_read_too_slowly(time.monotonic()) if output.unsent else self.client.closing:
            self.close()
        elif output.unsent or self.events != selectors.EVENT_READ or self.has_more:
            self._watch()

    def _watch(self) -> None:
        """Register the selector's events; queue the connection for another turn if it has more to run."""
        if self.has_more and self.may_run and not self.queued:
            self.queued = True
            self.connections.unfinished.append(self)
        events = (0 if self.peer_closed else selectors.EVENT_READ) | (
            selectors.EVENT_WRITE if self.output.unsent else 0
        )
        if events != self.events:
            self.events = events
            self.connections.selector.modify(self.channel, events, self)

    def is_read_too_slowly(self, moment: float) -> bool:
        """Whether more output waits than client-output-buffer-limit allows, or for too long."""
        if self.waiting > UNREAD_BEFORE_AUTH and self.engine.access.must_authenticate(self.client):
            self.engine.access.warn_closing(self.client, "too many bytes unread before it logged in")
            return True
        too_slow = self.output.is_read_too_slowly(self.engine.config.output, moment)
        if too_slow:
            log.warning("closing %s: %d bytes unread (client-output-buffer-limit)", self.client.address, self.waiting)
        return too_slow

    def close(self) -> None:
        """Close immediately and discard unsent output."""
        if self.closed:
            return
        self.closed = True
        self.connections.remove(self)
        self.channel.close()
        self.engine.forget(self.client)


TURN_SECONDS = 0.008  # time of a turn for large input, and again for unfinished work of earlier turns
FLUSH_AT_END = 1.0  # seconds for clients to take unsent replies when the server stops


class Connections:
    """The connections by their client IDs, all registered with one selector, and which of them have replies to send,
    commands to run, or must be closed.

    Replies about a change are sent after the change is written: `commit`, at the end of each turn. A blocked client
    gets its reply from the command that wakes it; the commands behind its own run after that command (`resume`). Once a
    second the server closes clients that have been idle, or have not read, for too long.
    """

    def __init__(self, engine: Engine, selector: selectors.BaseSelector) -> None:
        self.engine = engine
        self.selector = selector
        self.by_id: dict[int, ClientConnection] = {}
        self.to_flush: list[ClientConnection] = []  # replies wait for the end of the turn, or until changes are written
        self.unfinished: list[ClientConnection] = []  # with more to run than fits in one turn
        self.resumable: list[ClientConnection] = []  # unblocked, with commands behind the one that blocked
        self.joint = JointBatches(engine)  # requests that wait for those of other connections
        self.turn_ends = 0.0  # time.perf_counter() after which large input waits for the next turn
        engine.send = self._send_later
        engine.disconnect = self._close_client
        engine.memory.buffers = self._buffered
        engine.describe_buffers = self._describe_buffers

    def add(self, channel: Channel, address: str, local_address: str) -> None:
        """Add a client's connection."""
        client = self.engine.connect(address, local_address)
        connection = ClientConnection(channel, client, RequestParser(shapes=self.engine.shapes), self)
        self.by_id[client.id] = connection
        self.selector.register(channel, selectors.EVENT_READ, connection)

    def make_room(self) -> bool:
        """Close the oldest client that is not logged in. Return whether there is one."""
        access = self.engine.access
        oldest = next((one for one in self.by_id.values() if access.must_authenticate(one.client)), None)
        if oldest is not None:
            access.warn_closing(oldest.client, "it had not logged in, and maxclients is reached")
            oldest.close()
        return oldest is not None

    def remove(self, connection: ClientConnection) -> None:
        """Unregister a connection that is about to be closed."""
        del self.by_id[connection.client.id]
        self.selector.unregister(connection.channel)

    def begin_turn(self, ready: int) -> None:
        """Start the time of a turn in which this number of sockets is ready."""
        self.joint.begin(ready)
        self.turn_ends = time.perf_counter() + TURN_SECONDS

    def commit(self) -> None:
        """Write recorded changes, then send the replies about them."""
        self.engine.commit()
        while self.to_flush:
            connections, self.to_flush = self.to_flush, []
            for connection in connections:
                connection.flush()

    def _send_later(self, client: Client, reply: Reply) -> None:
        """Send the reply of a client that was blocked. Its next commands run after the command that woke it."""
        connection = self.by_id.get(client.id)
        if connection is None:
            return
        connection.output.fresh.append(encode(reply, client.resp))
        if connection.has_more or connection.parser.failure is not None:
            self.resumable.append(connection)
        else:
            self.to_flush.append(connection)

    def resume(self) -> None:
        """Run the waiting commands of unblocked clients, which may unblock other clients."""
        for connection in self.resumable:  # grows during the loop
            if not connection.closed and connection.client.waiter is None:
                connection.run_backlog()
        self.resumable.clear()

    def run_unfinished(self) -> None:
        """Run a slice of each unfinished connection; if the time is up, the remaining ones run in the next turns."""
        until = time.perf_counter() + TURN_SECONDS
        unfinished, self.unfinished = self.unfinished, []
        for next_index, connection in enumerate(unfinished, 1):
            connection.queued = False
            if connection.has_more and connection.may_run:
                connection.run_backlog()
            if time.perf_counter() > until:
                self.unfinished = unfinished[next_index:] + self.unfinished
                break

    def close_idle_and_slow(self, moment: float) -> None:
        """Close clients that have been idle, or have not read, for too long; called once a second."""
        config, now = self.engine.config, self.engine.now
        idle, soft = config.number("timeout") * 1000, config.output.soft
        if not idle and not soft:
            return
        for connection in list(self.by_id.values()):
            client = connection.client
            if idle and client.waiter is None and now - client.last_seen > idle:
                log.info("closing %s: idle for %d s", client.address, (now - client.last_seen) // 1000)
                connection.close()
            elif connection.output.unsent and connection.is_read_too_slowly(moment):
                connection.close()

    def _buffered(self) -> int:
        """Bytes of all connections: input and output that wait, and what is kept for their clients."""
        return sum(connection.memory for connection in self.by_id.values())

    def _describe_buffers(self, client: Client) -> tuple[int, int]:
        """Return a client's input that has not run and its unsent output, in bytes."""
        connection = self.by_id.get(client.id)
        return (0, 0) if connection is None else (connection.unrun_bytes, connection.waiting)

    def _close_client(self, client: Client) -> None:
        connection = self.by_id.get(client.id)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Send remaining output to clients that read it soon, and close all connections."""
        until = time.monotonic() + FLUSH_AT_END
        for connection in list(self.by_id.values()):
            connection.client.closing = True  # closed after the output is sent
            connection.flush()
        while self.by_id and (seconds_left := until - time.monotonic()) > 0:
            for key, mask in self.selector.select(seconds_left):
                if isinstance(key.data, ClientConnection) and not key.data.closed:
                    if mask & selectors.EVENT_READ:
                        self.selector.modify(key.data.channel, selectors.EVENT_WRITE, key.data)
                        key.data.events = selectors.EVENT_WRITE
                    key.data.flush()
        for connection in list(self.by_id.values()):
            connection.close()
