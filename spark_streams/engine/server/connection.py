"""One client's connection: reading, running what was read, and sending the replies.

Per turn: read what the socket has (up to 256 KB), parse it, run its commands, and write all their replies with one
send; a single small reply is sent at the end of the turn. If that takes longer than a slice, the other connections have
their turn before it goes on, and nothing is read from this one until then.

What the kernel does not take of the replies stays here, and as long as that is much, no more commands are run: what
comes is held as it came (`held`), so that a client may send all that it has before it reads. So a slow reader holds up
nobody, and costs no more memory than it has sent itself: client-query-buffer-limit, at the most. A client that has gone
without reading is known by the end of what it sent, and that is still run.

A connection whose command blocks keeps what is behind it in the same way until its reply has come.
"""

from __future__ import annotations

import logging
import math
import selectors
import time
from typing import Protocol

from spark_streams.engine.client import Client
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import error
from spark_streams.engine.resp.request_parser import RequestParser
from spark_streams.engine.resp.requests import BEFORE_AUTH, Request, TooLongError
from spark_streams.engine.server.listeners import Channel
from spark_streams.engine.server.output import Output

READ_SIZE = 256 * 1024
READ_LITTLE = 64 * 1024  # unless the last read was as much: room for more costs system calls of its own
PAUSE_ABOVE = 8 * 1024 * 1024  # unsent bytes above which a connection's commands wait
UNREAD_BEFORE_AUTH = 16 * 1024  # unsent bytes above which a client that is not logged in is closed
SLICE_SECONDS = 0.002  # after which the others have their turn
PER_REQUEST = 100  # bytes that Python takes for each, roughly
SHORT = 4096  # bytes that are run in the turn in which they come, however long that has taken already

# Replies below so many bytes are sent when all ready sockets are served: a send wakes the client up, who then competes.
_SMALL_REPLY = 512

log = logging.getLogger("rstream.engine")


class Turn(Protocol):
    """What a connection needs of all of them.

    held: their replies wait for the end of the turn; unfinished: with more to run than is run in one; turn_ends: when
    much that comes waits for the next one (time.perf_counter).
    """

    engine: Engine
    selector: selectors.BaseSelector
    held: list[Connection]
    unfinished: list[Connection]
    turn_ends: float

    def remove(self, connection: Connection) -> None:
        """It is about to be closed."""


class Connection:
    """One client's socket with what has been read and not run, and what is to be sent and not sent."""

    __slots__ = ("backlog", "backlog_bytes", "channel", "client", "closed", "connections", "deaf", "engine", "events",
                 "held", "output", "parser", "queued", "read_size")  # fmt: skip

    def __init__(self, channel: Channel, client: Client, parser: RequestParser, connections: Turn) -> None:
        self.channel = channel
        self.client = client
        self.parser = parser
        self.connections = connections  # all of them, this one included until it is closed
        self.engine = connections.engine
        self.closed = False
        self.deaf = False  # the other side has gone, and what it sent is still to be run
        self.backlog: list[Request] = []  # commands that were read and wait
        self.backlog_bytes = 0  # that they came in, roughly
        self.held = bytearray()  # what came behind them
        self.queued = False  # to go on with that
        self.read_size = READ_LITTLE
        self.output = Output(channel)
        self.events = selectors.EVENT_READ

    @property
    def not_run(self) -> int:
        """About the bytes of memory that requests take which have not run."""
        read = self.backlog_bytes + PER_REQUEST * len(self.backlog) if self.backlog else 0
        return self.parser.held + read + len(self.held)

    @property
    def waiting(self) -> int:
        """Bytes to be sent."""
        return self.output.waiting

    @property
    def has_more(self) -> bool:
        """Whether commands wait."""
        return bool(self.backlog or self.held or self.parser.unread)

    @property
    def may_run(self) -> bool:
        """Whether nothing holds them up."""
        client = self.client
        return not (self.closed or client.closing or client.waiter is not None) and (
            self.deaf or self.waiting <= PAUSE_ABOVE
        )

    # Reading and running

    def handle(self, mask: int) -> None:
        """The socket can be read from, or written to."""
        if self.closed:
            return  # by another one's command in this turn
        if mask & selectors.EVENT_WRITE:
            if self.has_more:
                self.engine.commit()
            self.flush()
        if mask & selectors.EVENT_READ and not (self.closed or self.deaf or self.queued):
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
        # The fields of `has_more`: this line runs for each read.
        behind = self.backlog or self.held or self.parser.unread
        if behind or self.client.waiter is not None or self.waiting > PAUSE_ABOVE:
            self.held += data
            if len(self.held) > self.parser.limits.held:
                what = "a command that waits" if self.client.waiter is not None else "replies that are not read"
                log.warning("closing %s: too much behind %s (client-query-buffer-limit)", self.client.address, what)
                self.close()
        elif len(data) > SHORT and time.perf_counter() > self.connections.turn_ends:
            self.held += data
            self._watch()
        else:
            self._run(self._parse(data))

    def _parse(self, data: bytes) -> list[Request]:
        engine, parser = self.engine, self.parser
        kept_out = engine.access.needed and engine.access.keeps_out(self.client)
        parser.limits = BEFORE_AUTH if kept_out else engine.config.requests
        held = parser.held
        requests = parser.feed(data)
        if len(requests) > 1:  # or none is left to wait
            self.backlog_bytes = max(held + len(data) - parser.held, 0)
        return requests

    def _end(self) -> None:
        """The other side has closed. What it sent is run, if it only waits for replies to be read."""
        self.deaf = True
        if self.has_more and self.may_run:
            self.output.drop()
            self._watch()
        else:
            self.close()

    def run_backlog(self) -> None:
        """A slice of what waited: the commands that were read, or a piece of what came behind them."""
        commands, self.backlog = self.backlog, []
        if not commands:
            data = b""
            if not self.parser.unread:
                data = bytes(memoryview(self.held)[:READ_SIZE])
                del self.held[:READ_SIZE]
            commands = self._parse(data)
        self._run(commands)
        if self.deaf and not self.has_more:
            self.close()
        elif not self.closed:
            self._watch()

    def _run(self, commands: list[Request]) -> None:
        client = self.client
        out = self.output.fresh
        ran = 0
        if commands:
            until = time.perf_counter() + SLICE_SECONDS if len(commands) > 1 else math.inf
            ran = self.engine.run(client, commands, out, PAUSE_ABOVE, 0, until)
        if ran < len(commands):
            self.backlog = commands[ran:]
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
            self.connections.held.append(self)
        else:
            self.flush()

    # Sending

    def flush(self) -> None:
        """Send what the kernel takes, and what tells of a change not before that is kept."""
        if self.closed:
            return
        output = self.output
        if output.fresh and self.engine.journal is not None and self.engine.journal.parts:
            self.connections.held.append(self)
            return
        if self.deaf:
            output.drop()
        try:
            output.send()
        except OSError:
            self._end()
            return
        if self.is_read_too_slowly(time.monotonic()) if output.unsent else self.client.closing:
            self.close()
        else:
            self._watch()

    def _watch(self) -> None:
        """What the selector is to tell of; and where there is more to run, its turn comes after the others'."""
        if self.has_more and self.may_run and not self.queued:
            self.queued = True
            self.connections.unfinished.append(self)
        events = (0 if self.deaf else selectors.EVENT_READ) | (selectors.EVENT_WRITE if self.output.unsent else 0)
        if events != self.events:
            self.events = events
            self.connections.selector.modify(self.channel, events, self)

    def is_read_too_slowly(self, moment: float) -> bool:
        """Whether more waits than client-output-buffer-limit allows, or for longer."""
        if self.waiting > UNREAD_BEFORE_AUTH and self.engine.access.keeps_out(self.client):
            self.engine.access.warn_of(self.client, "too many bytes unread before it logged in")
            return True
        too_slow = self.output.is_read_too_slowly(self.engine.config.output, moment)
        if too_slow:
            log.warning("closing %s: %d bytes unread (client-output-buffer-limit)", self.client.address, self.waiting)
        return too_slow

    def close(self) -> None:
        """At once, whatever is still to be sent."""
        if self.closed:
            return
        self.closed = True
        self.connections.remove(self)
        self.channel.close()
        self.engine.forget(self.client)
