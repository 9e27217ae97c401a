"""XREAD BLOCK over many streams: wait for the next entry of any of them, with one connection per node.

The server keeps each request until one of its streams gets an entry, or until its time is over. Between two calls the
request stays with the server, so waiting costs no commands. The entry itself is of no interest: the caller asks for the
state of all streams after it.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Mapping

import hiredis

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect, invalidate_topology, leave_if_replica
from spark_streams.connector.wire.connection.connection import Connection, ReplyError, pack
from spark_streams.connector.wire.connection.server import Server


class BlockedRead:
    """One caller's blocking reads. Not for two threads at once.

    refused: the server's error if this user may not use XREAD; then nothing is waited for.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._server: Server | None = None
        self._waiting: dict[Connection, frozenset[str]] = {}
        self.refused: str | None = None

    def begin(self, last: Mapping[str, StreamId], seconds: float) -> None:
        """Wait for an entry above `last`, the last ID of each stream, for at most `seconds`.

        A node whose request is still open is not asked again: none of its streams has had an entry since.
        Raises ServerError.
        """
        server = self._server = self._server or connect(self._address, repeats=True)
        for connection, streams in server.parts(list(last), lambda stream: stream):
            names = frozenset(streams)
            if self._waiting.get(connection) == names:
                continue
            if connection in self._waiting:
                self.close()
                return self.begin(last, seconds)
            ids = [str(last[stream]) for stream in streams]
            wait = max(1, round(seconds * 1000))
            connection.send(pack("XREAD", "COUNT", 1, "BLOCK", wait, "STREAMS", *streams, *ids))
            self._waiting[connection] = names
        return None

    def is_over(self, seconds: float) -> bool:
        """Wait up to `seconds`. Whether a stream has an entry, the time is over, or a connection was lost."""
        if any(connection.has_input for connection in self._waiting):
            ready = [connection for connection in self._waiting if connection.has_input]
        else:
            poll = select.poll()
            by_file = {connection.fileno(): connection for connection in self._waiting}
            for file in by_file:
                poll.register(file, select.POLLIN)
            ready = [by_file[file] for file, _ in poll.poll(seconds * 1000)]
        for connection in ready:
            self._take_reply(connection)
        return bool(ready)

    def close(self) -> None:
        """Close all connections; the server forgets the requests."""
        self._waiting = {}
        if self._server is not None:
            with contextlib.suppress(RStreamError):
                self._server.close()
            self._server = None

    def _take_reply(self, connection: Connection) -> None:
        """Read a reply that is small. A connection with a large one is closed, so that no large entry is read here."""
        reader = hiredis.Reader(replyError=ReplyError)
        try:
            reader.feed(connection.receive_some())  # type: ignore[arg-type]  # it takes any buffer
        except RStreamError:
            self.close()
            return
        reply = reader.gets()
        if isinstance(reply, ReplyError):
            if reply.code == "NOPERM":
                self.refused = str(reply)
            invalidate_topology(self._address)
            leave_if_replica(self._address, reply)
        if reply is False or isinstance(reply, ReplyError):
            self.close()
        else:
            self._waiting.pop(connection, None)
