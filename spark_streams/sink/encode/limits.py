"""Rows that exceed what a server takes in one argument or in one request.

The writer asks for the limits (CONFIG GET) before its first large chunk. If the user may not read them, the chunk is
sent as it is. The server closes the connection if the chunk exceeds a limit. The third time, the task fails with
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
from spark_streams.wire.limits import NAMES, SMALL, ask_limits

_INSTEAD = "write less, or let route_dead_letters take such rows out"
_MOST_LOSSES = 3  # of a connection, while the same chunk is sent and the server does not tell its limits


class Limits:
    """One task's knowledge of its server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._known: tuple[int, int] | None = None
        self._is_asked = False
        self._lost: tuple[int, int] = (-1, 0)  # the first row of a chunk that was lost, and how often

    def needs_asking(self, chunk: Chunk) -> bool:
        """Whether the chunk is large, and the server has not been asked yet."""
        return not self._is_asked and _bytes(chunk) > SMALL

    def ask(self, server: Server) -> None:
        """Learn the limits, if the user may read them. Raises ServerError."""
        self._known, self._is_asked = ask_limits(server), True

    def fitting(self, chunk: Chunk) -> Iterator[Chunk]:
        """The same rows in requests that the server takes. Raises RowTooLargeError for a row that it will not."""
        if self._known is None or _bytes(chunk) <= SMALL:
            yield chunk
            return
        argument, request = self._known
        for place in np.flatnonzero(np.diff(chunk.requests.offsets) > argument).tolist():
            row = chunk.slice(place, place + 1)
            if largest_value(row)[1] > argument:
                raise self._too_large(row, f"takes {argument} ({NAMES[0]}): raise that, {_INSTEAD}")
        # The other half is for marks, and for what the server counts besides.
        yield from cut(chunk, len(chunk), request // 2)

    def lost(self, chunk: Chunk) -> None:
        """Count a connection that was lost while this chunk was sent. Raises RowTooLargeError if the chunk is why."""
        if _bytes(chunk) <= SMALL:
            return
        largest = int(np.diff(chunk.requests.offsets).argmax())
        row = chunk.slice(largest, largest + 1)
        if self._known is not None:
            if _bytes(row) > self._known[1]:
                raise self._too_large(row, f"takes {self._known[1]} ({NAMES[1]}): raise that, {_INSTEAD}")
            return
        first = int(chunk.rows[0])
        self._lost = (first, self._lost[1] + 1 if self._lost[0] == first else 1)
        if self._lost[1] == _MOST_LOSSES:
            why = f"closes the connection each time: raise its {NAMES[1]} or {NAMES[0]}, {_INSTEAD}"
            raise self._too_large(row if _bytes(row) > SMALL else chunk, why)

    def _too_large(self, chunk: Chunk, why: str) -> RowTooLargeError:
        row, last = int(chunk.rows[0]), int(chunk.rows[-1])
        if len(chunk) == 1:
            field, size = largest_value(chunk)
            shown = field[:80].decode("utf-8", "replace")
            what = f"row {row} of this task has {_bytes(chunk)} bytes, with a value of {size} bytes in field {shown!r}"
        else:
            what = f"rows {row} to {last} of this task have {_bytes(chunk)} bytes"
            why += " at a time (chunkSize)"
        return RowTooLargeError(f"{what}, for stream {_stream(chunk)!r}, and the server at {self._address} {why}")


def largest_value(row: Chunk) -> tuple[bytes, int]:
    """(the field, the size in bytes) of the largest value of one row."""
    words = words_of(row, 0)
    at = max(range(1, len(words)), key=lambda place: len(words[place]))
    return words[at - 1], len(words[at])


def _bytes(chunk: Chunk) -> int:
    offsets = chunk.requests.offsets
    return int(offsets[-1] - offsets[0])


def _stream(chunk: Chunk) -> str:
    name: bytes = chunk.streams[int(chunk.codes[0])]
    return name.decode("utf-8", "replace")
