"""Rows that exceed what a server takes in one argument or in one request.

The writer asks for the limits (CONFIG GET) before its first large chunk. If the user may not read them, chunks are sent
unchecked: the server closes the connection if one exceeds a limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spark_streams.connector.errors import RowTooLargeError
from spark_streams.connector.sink.encode.chunks import Chunk, cut
from spark_streams.connector.sink.encode.row_errors import words_of
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.server_limits import NAMES, SMALL, fetch_limits


class ServerLimits:
    """Limits of the server, as far as a task knows them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._limits: tuple[int, int] | None = None  # bytes of an argument, and of a request
        self._is_asked = False

    def needs_limits(self, chunk: Chunk) -> bool:
        """Whether the chunk is large, and the task has not asked for the limits yet."""
        return not self._is_asked and _bytes(chunk) > SMALL

    def read_limits(self, server: Server) -> None:
        """Read the limits, if the user may. Raises ServerError."""
        self._limits, self._is_asked = fetch_limits(server), True

    def split(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the same rows in requests within the limits. Raises RowTooLargeError for a row beyond them."""
        if self._limits is None or _bytes(chunk) <= SMALL:
            yield chunk
            return
        argument, request = self._limits
        for place in np.flatnonzero(np.diff(chunk.requests.offsets) > min(argument, request)).tolist():
            row = chunk.slice(place, place + 1)
            if largest_value(row)[1] > argument:
                raise self._too_large(row, f"takes {argument} ({NAMES[0]})")
            if _bytes(row) > request:
                raise self._too_large(row, f"takes {request} ({NAMES[1]})")
        # The other half is for marks, and for other bytes that the server counts.
        yield from cut(chunk, len(chunk), request // 2)

    def _too_large(self, chunk: Chunk, cause: str) -> RowTooLargeError:
        field, size = largest_value(chunk)
        return RowTooLargeError(
            f"row {int(chunk.rows[0])} of this task has {_bytes(chunk)} bytes, with a value of {size} bytes in field "
            f"{field[:80].decode('utf-8', 'replace')!r}, for stream {_stream(chunk)!r}, but the server at "
            f"{self._address} {cause}. Raise this limit, write less, or send such rows elsewhere with "
            "route_dead_letters"
        )


def largest_value(row: Chunk) -> tuple[bytes, int]:
    """Return (the field, the size in bytes) of the largest value of one row."""
    words = words_of(row, 0)
    index = max(range(1, len(words)), key=lambda place: len(words[place]))
    return words[index - 1], len(words[index])


def _bytes(chunk: Chunk) -> int:
    offsets = chunk.requests.offsets
    return int(offsets[-1] - offsets[0])


def _stream(chunk: Chunk) -> str:
    name: bytes = chunk.streams[int(chunk.codes[0])]
    return name.decode("utf-8", "replace")
