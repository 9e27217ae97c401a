"""Requests over one connection, several of them outstanding."""

from __future__ import annotations

from spark_streams.connector.wire.connection.connection import Connection
from spark_streams.connector.wire.connection.connection import Key as Key
from spark_streams.connector.wire.connection.connection import Server as Server

# Each group of requests ends in an end marker (an ECHO of a random token). `take` returns the reply bytes up to the
# oldest end marker.

_TOGETHER = 1 << 18  # bytes: pieces of less are sent as one


class Pipe:
    """Groups of requests over one connection, which is used for nothing else while replies are outstanding."""

    def __init__(self, server: Connection) -> None:
        self.server = server
        self.end_marker, self._token = server.mark
        self._inbox = bytearray()
        self._searched = 0

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send all pieces; replies that arrive meanwhile are stored. Raises ServerUnreachableError."""
        for piece in pieces if len(pieces) == 1 or sum(map(len, pieces)) > _TOGETHER else [b"".join(pieces)]:
            self.server.send(piece)

    def take(self) -> bytes:
        """Return the reply bytes up to the oldest end marker. Raises ServerUnreachableError."""
        while (end := self._inbox.find(self._token, self._searched)) < 0:
            self._searched = max(len(self._inbox) - len(self._token), 0)
            self._inbox += self.server.receive_some()
        replies = bytes(memoryview(self._inbox)[:end])
        del self._inbox[: end + len(self._token)]
        self._searched = 0
        return replies
