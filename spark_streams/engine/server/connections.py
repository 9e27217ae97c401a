"""All connections of a server: who is there, whose replies wait, whose commands wait, who has to go.

Replies that tell of a change leave when the change is kept: `commit`, at the end of each turn. A blocked client gets
its reply from the command that woke it; the commands behind its own are run after that command (`resume`). Once a
second everybody is looked over: who has been idle for too long, or has not read for too long.
"""

from __future__ import annotations

import logging
import selectors
import time

from spark_streams.engine.client import Client
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import Reply, encode
from spark_streams.engine.resp.request_parser import RequestParser
from spark_streams.engine.server.connection import Connection
from spark_streams.engine.server.listeners import Channel

TURN_SECONDS = 0.008  # of one turn for much that comes, and again for what earlier ones left
FLUSH_AT_END = 1.0  # seconds for clients to take what is still to be sent when the server stops

log = logging.getLogger("rstream.engine")


class Connections:
    """The connections by the ids of their clients, all known to one selector."""

    def __init__(self, engine: Engine, selector: selectors.BaseSelector) -> None:
        self.engine = engine
        self.selector = selector
        self.by_id: dict[int, Connection] = {}
        self.held: list[Connection] = []  # their replies wait for the end of the turn, or until what they tell is kept
        self.unfinished: list[Connection] = []  # with more to run than is run in one turn
        self.resumable: list[Connection] = []  # unblocked, with commands behind the one that blocked
        self.turn_ends = 0.0  # when much that comes waits for the next turn
        engine.send = self._send_later
        engine.disconnect = self._close_client
        engine.memory.buffers = self._buffered
        engine.describe_buffers = self._describe_buffers

    def add(self, channel: Channel, address: str, own: str) -> None:
        """A client has come in."""
        client = self.engine.connect(address, own)
        connection = Connection(channel, client, RequestParser(shapes=self.engine.shapes), self)
        self.by_id[client.id] = connection
        self.selector.register(channel, selectors.EVENT_READ, connection)

    def remove(self, connection: Connection) -> None:
        """It is about to be closed."""
        del self.by_id[connection.client.id]
        self.selector.unregister(connection.channel)

    def begin_turn(self) -> None:
        """Sockets are about to be served."""
        self.turn_ends = time.perf_counter() + TURN_SECONDS

    def commit(self) -> None:
        """Keep what has changed, then let out the replies that tell of it."""
        self.engine.commit()
        while self.held:
            held, self.held = self.held, []
            for connection in held:
                connection.flush()

    def _send_later(self, client: Client, reply: Reply) -> None:
        """A blocked client has its reply: send it. What came behind is run after the command that woke it."""
        connection = self.by_id.get(client.id)
        if connection is None:
            return
        connection.output.fresh.append(encode(reply, client.resp))
        if connection.has_more or connection.parser.failure is not None:
            self.resumable.append(connection)
        else:
            self.held.append(connection)

    def resume(self) -> None:
        """Run the commands of those who were unblocked, which may unblock others."""
        for connection in self.resumable:  # grows meanwhile
            if not connection.closed and connection.client.waiter is None:
                connection.run_backlog()
        self.resumable.clear()

    def go_on(self) -> None:
        """Run a slice of what each has still to be run; some of them in the next turns, if they are many."""
        until = time.perf_counter() + TURN_SECONDS
        unfinished, self.unfinished = self.unfinished, []
        for at, connection in enumerate(unfinished, 1):
            connection.queued = False
            if connection.has_more and connection.may_run:
                connection.run_backlog()
            if time.perf_counter() > until:
                self.unfinished = unfinished[at:] + self.unfinished
                break

    def look_over(self, moment: float) -> None:
        """Once a second: close who is idle, or does not read, for too long."""
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
        """Bytes that wait in connections, read and written."""
        return sum(connection.not_run + connection.waiting for connection in self.by_id.values())

    def _describe_buffers(self, client: Client) -> tuple[int, int]:
        """Of one client: bytes read and not run, bytes to be sent."""
        connection = self.by_id.get(client.id)
        return (0, 0) if connection is None else (connection.not_run, connection.waiting)

    def _close_client(self, client: Client) -> None:
        connection = self.by_id.get(client.id)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Send what is still to be sent, to those who read it soon, and close all."""
        until = time.monotonic() + FLUSH_AT_END
        for connection in list(self.by_id.values()):
            connection.client.closing = True  # closed when all is sent
            connection.flush()
        while self.by_id and (left := until - time.monotonic()) > 0:
            for key, mask in self.selector.select(left):
                if isinstance(key.data, Connection) and not key.data.closed:
                    if mask & selectors.EVENT_READ:
                        self.selector.modify(key.data.channel, selectors.EVENT_WRITE, key.data)
                        key.data.events = selectors.EVENT_WRITE
                    key.data.flush()
        for connection in list(self.by_id.values()):
            connection.close()
