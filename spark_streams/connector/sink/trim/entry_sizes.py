"""Size of a stream's entries in the server's memory: how many of them fit into `retentionBytes`.

The task sends MEMORY USAGE after the first chunk to a stream, and then every 32 chunks. The server samples a few nodes
and replies in well under a millisecond, for a stream of any length. The reply includes pending lists, which some
servers count several times (docs/internals/facts.md). So an entry counts at most the bytes of the commands that were
sent for it: pending lists never shorten a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.connector.sink.encode.chunks import Chunk
from spark_streams.connector.wire.connection.server import Server

ASK_EVERY = 32  # chunks


@dataclass
class _Stream:
    """sent, rows: bytes and rows of all chunks so far; since: chunks since the last MEMORY USAGE; size: bytes of an
    entry, None: not known yet."""

    sent: int = 0
    rows: int = 0
    since: int = 0
    size: float | None = None


class EntrySizes:
    """Entry sizes of one task's streams. max_bytes: of one stream."""

    def __init__(self, max_bytes: int) -> None:
        self._most_bytes = max_bytes
        self._streams: dict[bytes, _Stream] = {}

    def max_entries(self, stream: bytes) -> int | None:
        """Return how many entries the stream may have; None if that is not known yet."""
        state = self._streams.get(stream)
        return None if state is None or state.size is None else max(1, int(self._most_bytes / state.size))

    def count(self, chunk: Chunk) -> list[bytes]:
        """Count a written chunk. Return those of its streams whose entry size is due to be asked for."""
        offsets = chunk.requests.offsets
        due = []
        for stream, start, stop in chunk.segments:
            state = self._streams.setdefault(stream, _Stream())
            state.sent += int(offsets[stop] - offsets[start])
            state.rows += stop - start
            if state.since == 0:
                due.append(stream)
            state.since = (state.since + 1) % ASK_EVERY
        return due

    def ask(self, server: Server, streams: Sequence[bytes]) -> None:
        """Ask for the size of these streams' entries, in one round trip. Raises ServerReplyError and its subclasses."""
        commands = [command for stream in streams for command in (("MEMORY", "USAGE", stream), ("XLEN", stream))]
        replies = server.execute_all(commands)
        for stream, usage, length in zip(streams, replies[0::2], replies[1::2], strict=True):
            state = self._streams[stream]
            if usage and length:
                state.size = min(usage / length, state.sent / state.rows)
