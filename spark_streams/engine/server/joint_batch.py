"""XADDs that many connections send in one turn, run as one batch.

A producer that waits for each reply sends one XADD per turn. The commands of many such producers usually differ only in
their values, as the commands of one pipeline do (resp/xadd_batch.py):

    connection 1   *7 $4 XADD $1 s $1 *   $1 f $3 123 $1 g $2 ab
    connection 2   *7 $4 XADD $1 s $1 *   $1 f $1 9   $1 g $3 xyz
                   |<---- prefix ---->|   |<---- section ------>|

Requests with the same prefix wait until all ready sockets are read, and are then joined in the order of their arrival.
They run as one batch if each command of the batch is exactly one of the requests; each connection gets its reply. Other
requests run one by one.
"""

from __future__ import annotations

from typing import Protocol

from spark_streams.engine.client import REPLY_ON, Client
from spark_streams.engine.core import Engine
from spark_streams.engine.resp.request_parser import RequestParser
from spark_streams.engine.resp.xadd_batch import Shapes, find_batch

LONGEST = 1024  # bytes of a request that may wait for others
_FEWEST = 8  # ready sockets, and requests of one prefix, from which on a batch is faster
_PAUSE = 15  # turns without waiting after a turn in which no batch was possible
_PREFIX_END = b"\r\n$1\r\n*\r\n"  # the ID `*`
_LONGEST_PREFIX = 256


class Sender(Protocol):
    """What a batch needs of a connection (connection.py)."""

    client: Client
    parser: RequestParser
    closed: bool

    def run_alone(self, data: bytes) -> None:
        """Run a request that has waited for others."""

    def reply_later(self, reply: bytes) -> None:
        """Send a reply at the end of the turn."""


class JointBatches:
    """The requests of one turn that wait for others of the same prefix."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shapes = Shapes(min_chunk_bytes=1, make=engine.shapes.make)
        self.waiting: dict[bytes, list[tuple[Sender, bytes]]] = {}
        self._pause = 0  # turns of many ready sockets in which no request waits
        self.active = False  # whether requests may wait in this turn

    def begin(self, ready: int) -> None:
        """Start a turn in which this number of sockets is ready."""
        self.active = ready >= _FEWEST and not self._pause
        if self._pause and ready >= _FEWEST:
            self._pause -= 1

    def take(self, connection: Sender, data: bytes) -> bool:
        """Let a request wait for others. Return False if it cannot be part of a batch, and must run now."""
        client = connection.client
        end = data.find(_PREFIX_END, 0, _LONGEST_PREFIX)
        if end < 0 or connection.parser.holds or not client.authenticated:
            return False
        if client.queue is not None or client.reply_mode != REPLY_ON or client.closing:
            return False
        self.waiting.setdefault(data[: end + len(_PREFIX_END)], []).append((connection, data))
        return True

    def run(self) -> None:
        """Run the requests that wait."""
        batches = 0
        for group in self.waiting.values():
            if len(group) >= _FEWEST and self._run_as_one(group):
                batches += 1
                continue
            for connection, data in group:
                connection.run_alone(data)
        self.waiting.clear()
        self._pause = 0 if batches else _PAUSE

    def _run_as_one(self, group: list[tuple[Sender, bytes]]) -> bool:
        """Run requests as one batch. Return False if nothing was done."""
        data = b"".join([request for _connection, request in group])
        shape = self._shapes.learn(data)
        batch = find_batch(shape, data) if shape is not None else None
        if batch is None or len(batch.sections) != len(group):
            return False
        shared = len(batch.shape.prefix)
        clients = []
        for (connection, request), section in zip(group, batch.sections, strict=True):
            if len(request) != shared + len(section) or connection.closed:
                return False
            clients.append(connection.client)
        replies = self._engine.run_joint(clients, batch)
        if replies is None:
            return False
        for (connection, _request), reply in zip(group, replies.split(b"$")[1:], strict=True):
            connection.reply_later(b"$" + reply)
        return True
