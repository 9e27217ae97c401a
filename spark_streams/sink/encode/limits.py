"""Rows that exceed what a server takes in one argument or in one request.

The writer asks for the limits (CONFIG GET) before its first large chunk. If the user may not read them, the chunk is
sent unchecked. The server closes the connection if the chunk exceeds a limit. The third time, the task fails with
RowTooLargeError.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spark_streams.errors import RowTooLargeError
from spark_streams.sink.encode.chunks import Chunk, cut
from spark_streams.sink.encode.row_errors import words_of
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.server import Server
from spark_streams.wire.limits import NAMES, SMALL, fetch_limits

_INSTEAD = "write less, or send such rows elsewhere with route_dead_letters"
_MAX_LOSSES = 3  # of a connection, while the same chunk is sent and the limits are not known


class Limits:
    """Limits of the server, as far as a task knows them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._limits: tuple[int, int] | None = None  # bytes of an argument, and of a request
        self._is_asked = False
        self._last_loss: tuple[int, int] = (-1, 0)  # the first row of the chunk, and how often it lost the connection

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
        for place in np.flatnonzero(np.diff(chunk.requests.offsets) > argument).tolist():
            row = chunk.slice(place, place + 1)
            if largest_value(row)[1] > argument:
                raise self._too_large(row, f"takes {argument} ({NAMES[0]}). Raise this limit, {_INSTEAD}")
        # The other half is for marks, and for other bytes that the server counts.
        yield from cut(chunk, len(chunk), request // 2)

    def count_loss(self, chunk: Chunk) -> None:
        """Count a connection that was lost while this chunk was sent. Raises RowTooLargeError if the chunk is the
        cause."""
        if _bytes(chunk) <= SMALL:
            return
        largest = int(np.diff(chunk.requests.offsets).argmax())
        row = chunk.slice(largest, largest + 1)
        if self._limits is not None:
            if _bytes(row) > self._limits[1]:
                raise self._too_large(row, f"takes {self._limits[1]} ({NAMES[1]}). Raise this limit, {_INSTEAD}")
            return
        first = int(chunk.rows[0])
        self._last_loss = (first, self._last_loss[1] + 1 if self._last_loss[0] == first else 1)
        if self._last_loss[1] == _MAX_LOSSES:
            cause = f"closes the connection each time. Raise its {NAMES[1]} or {NAMES[0]}, {_INSTEAD}"
            raise self._too_large(row if _bytes(row) > SMALL else chunk, cause)

    def _too_large(self, chunk: Chunk, cause: str) -> RowTooLargeError:
        row, last = int(chunk.rows[0]), int(chunk.rows[-1])
        if len(chunk) == 1:
            field, size = largest_value(chunk)
            shown = field[:80].decode("utf-8", "replace")
            rows = f"row {row} of this task has {_bytes(chunk)} bytes, with a value of {size} bytes in field {shown!r}"
        else:
            rows = f"rows {row} to {last} of this task have {_bytes(chunk)} bytes"
            cause += " at a time (chunkSize)"
        return RowTooLargeError(f"{rows}, for stream {_stream(chunk)!r}, but the server at {self._address} {cause}")


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
