"""All connections of a server, and which of them have replies to send, commands to run, or must be closed.

Replies about a change are sent after the change is written: `commit`, at the end of each turn. A blocked client gets
its reply from the command that wakes it; the commands behind its own run after that command (`resume`). Once a second
the server closes clients that have been idle, or have not read, for too long.
"""

from __future__ import annotations

import logging
import selectors
import time

from spark_streams.engine.client import Client
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.replies import Reply, encode
from spark_streams.engine.resp.request_parser import RequestParser
from spark_streams.engine.server.client_connection import ClientConnection
from spark_streams.engine.server.joint_batch import JointBatches
from spark_streams.engine.server.listeners import Channel

TURN_SECONDS = 0.008  # time of a turn for large input, and again for unfinished work of earlier turns
FLUSH_AT_END = 1.0  # seconds for clients to take unsent replies when the server stops

log = logging.getLogger("rstream.engine")


class Connections:
    """The connections by their client IDs, all registered with one selector."""

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
