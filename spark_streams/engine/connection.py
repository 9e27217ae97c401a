"""One client's connection: reading, running what was read, and sending the replies.

Per turn: read what the socket has (up to 256 KB), parse it, run its commands, and write all their replies with one
send; a single small reply is sent at the end of the turn.
What the kernel does not take stays in the connection's output buffer, and nothing more is read from that connection
until the buffer is small again; nor are more of its pipelined commands run. A slow reader holds up nobody and cannot
make the engine grow without limit.

A connection whose command blocks keeps the commands behind it until its reply has come.
"""

from __future__ import annotations

import logging
import selectors
import time
from typing import TYPE_CHECKING

from spark_streams.engine.client import Client
from spark_streams.engine.listeners import Channel
from spark_streams.engine.protocol import RequestParser
from spark_streams.engine.replies import error
from spark_streams.engine.requests import BEFORE_AUTH, Request, TooLongError, size_of

if TYPE_CHECKING:
    from spark_streams.engine.connections import Connections

READ_SIZE = 256 * 1024
READ_LITTLE = 64 * 1024  # unless the last read was as much: room for more costs system calls of its own
PAUSE_ABOVE = 8 * 1024 * 1024  # unsent bytes above which a connection is not read from

# Replies below so many bytes are sent when all ready sockets are served: a send wakes the client up, who then competes.
_SMALL_REPLY = 512

log = logging.getLogger("rstream.engine")


class Connection:
    """One client's socket with what has been read and not run, and what is to be sent and not sent."""

    __slots__ = ("backlog", "backlog_bytes", "channel", "client", "closed", "connections", "engine", "events", "late",
                 "out", "parser", "read_size", "slow_since", "unsent")  # fmt: skip

    def __init__(self, channel: Channel, client: Client, parser: RequestParser, connections: Connections) -> None:
        self.channel = channel
        self.client = client
        self.parser = parser
        self.connections = connections  # all of them, this one included until it is closed
        self.engine = connections.engine
        self.closed = False
        self.backlog: list[Request] = []  # commands behind a blocking one
        self.backlog_bytes = 0  # about what they take
        self.read_size = READ_LITTLE
        self.out: list[bytes] = []  # replies since the last flush
        self.unsent = memoryview(b"")  # what the kernel has not taken
        self.late = bytearray()  # what came after that
        self.slow_since = 0.0  # since when more is unsent than the soft limit; 0: it is not
        self.events = selectors.EVENT_READ

    @property
    def not_run(self) -> int:
        """Bytes that have been read."""
        return self.parser.held + self.backlog_bytes

    @property
    def waiting(self) -> int:
        """Bytes to be sent."""
        return len(self.unsent) + len(self.late)

    # Reading and running

    def handle(self, mask: int) -> None:
        """The socket can be read from, or written to."""
        if self.closed:
            return  # by another one's command in this turn
        if mask & selectors.EVENT_WRITE:
            if self.backlog:
                self.engine.commit()
            self.flush()
            client = self.client
            if self.backlog and client.waiter is None and not client.postponed and self.waiting <= PAUSE_ABOVE:
                self.run_backlog()
        if mask & selectors.EVENT_READ and not self.closed:
            try:
                data = self.channel.recv(self.read_size)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self.read_size = READ_LITTLE if len(data) < READ_LITTLE else READ_SIZE
            self._take(data)

    def _take(self, data: bytes) -> None:
        parser = self.parser
        if parser.limits is BEFORE_AUTH:
            self._take_unauthenticated(data)
            return
        commands = parser.feed(data)
        if self.client.waiter is not None or self.backlog:
            self.backlog += commands
            self.backlog_bytes += len(data) + 100 * len(commands)
            if self.backlog_bytes > parser.limits.held:
                log.warning("closing %s: too much behind a command that waits", self.client.address)
                self.close()
            return
        self._run(commands)

    def _take_unauthenticated(self, data: bytes) -> None:
        """Command by command, because after AUTH more is allowed."""
        parser, client = self.parser, self.client
        while True:
            commands = parser.feed(data)
            if client.authenticated or not self.engine.access.closed:
                parser.limits = self.engine.config.requests
            self._run(commands)
            if client.closing or self.closed or not commands:
                return
            data = b""
            if client.authenticated:
                parser.limits = self.engine.config.requests
                if parser.held:
                    self._take(data)
                return

    def run_backlog(self) -> None:
        """What stood behind a command that waited."""
        commands, self.backlog, self.backlog_bytes = self.backlog, [], 0
        self._run(commands)

    def _run(self, commands: list[Request]) -> None:
        client = self.client
        out = self.out
        ran = 0
        while ran < len(commands):
            ran = self.engine.run(client, commands, out, PAUSE_ABOVE, ran)
            if client.waiter is not None or client.closing:
                break
            if client.postponed:
                self.connections.postponed.append(self)
                break
            if ran < len(commands):
                self.engine.commit()
                self.flush()
                if self.waiting > PAUSE_ABOVE or self.closed:
                    break  # the rest when this has been read, or never
        if ran < len(commands):
            self.backlog = commands[ran:]
            self.backlog_bytes = sum(map(size_of, self.backlog))
            self.flush()
            return
        failure = self.parser.failure
        if failure is not None and client.waiter is None and not client.closing:
            client.closing = True
            if isinstance(failure, TooLongError):
                log.warning("closing %s: its request is longer than client-query-buffer-limit", client.address)
            else:
                self.out.append(error(f"ERR Protocol error: {failure}".encode()))
        if len(self.out) == 1 and len(self.out[0]) < _SMALL_REPLY:
            self.connections.held.append(self)
        else:
            self.flush()

    # Sending

    def flush(self) -> None:
        """Send what the kernel takes, and what tells of a change not before that is kept."""
        if self.closed:
            return
        if self.out:
            if self.engine.journal is not None and self.engine.journal.parts:
                self.connections.held.append(self)
                return
            fresh = b"".join(self.out) if len(self.out) > 1 else self.out[0]
            self.out.clear()
            if self.unsent:
                self.late += fresh
            elif self._is_sent_at_once(fresh):
                return
        while self.unsent:
            try:
                sent = self.channel.send(self.unsent)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.close()
                return
            self.unsent = self.unsent[sent:]
            if not self.unsent and self.late:
                self.unsent, self.late = memoryview(self.late), bytearray()
        if not self.unsent and self.client.closing:
            self.close()
            return
        if self.unsent and self.is_read_too_slowly(time.monotonic()):
            self.close()
            return
        events = selectors.EVENT_READ if self.waiting <= PAUSE_ABOVE else 0
        if self.unsent:
            events |= selectors.EVENT_WRITE
        if events != self.events:
            self.events = events
            self.connections.selector.modify(self.channel, events, self)

    def _is_sent_at_once(self, data: bytes) -> bool:
        """Whether the kernel takes all of it and nothing else is to be done, as it is nearly always."""
        if self.events == selectors.EVENT_READ and not self.client.closing:
            try:
                sent = self.channel.send(memoryview(data))
            except OSError:
                sent = 0  # why, the second attempt will tell
            if sent == len(data):
                return True
            data = data[sent:]
        self.unsent = memoryview(data)
        return False

    def is_read_too_slowly(self, moment: float) -> bool:
        """Whether more waits than client-output-buffer-limit allows, or for longer."""
        limit, waiting = self.engine.config.output, self.waiting
        too_slow = bool(limit.hard) and waiting > limit.hard
        if not limit.soft or waiting <= limit.soft:
            self.slow_since = 0.0
        elif not self.slow_since:
            self.slow_since = moment
        elif moment - self.slow_since > limit.seconds:
            too_slow = True
        if too_slow:
            log.warning("closing %s: %d bytes unread (client-output-buffer-limit)", self.client.address, waiting)
        return too_slow

    def close(self) -> None:
        """At once, whatever is still to be sent."""
        if self.closed:
            return
        self.closed = True
        self.connections.remove(self)
        self.channel.close()
        self.engine.forget(self.client)
