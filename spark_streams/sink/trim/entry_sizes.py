"""How many bytes the entries of a stream take in the server's memory, and so how many make up `retentionBytes`.

MEMORY USAGE is asked after the first chunk that goes to a stream, and again every few chunks: it looks at some nodes
only, and answers in well under a millisecond however long the stream is. What groups have pending is in its answer,
too, and by some servers counted several times over (docs/internals/facts.md). So an entry counts as no more than what
was sent for it, command, names and all: then pending lists never make a stream shorter than its entries deserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.sink.encode.chunks import Chunk
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server

ASK_EVERY = 32  # chunks


@dataclass
class _Stream:
    """sent, rows: of all chunks so far; since: chunks since the server was asked; size: bytes of an entry, None: it was
    not asked yet."""

    sent: int = 0
    rows: int = 0
    since: int = 0
    size: float | None = None


class EntrySizes:
    """Those of one task's streams. most_bytes: of one stream."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._streams: dict[bytes, _Stream] = {}

    def most(self, stream: bytes) -> int | None:
        """How many entries the stream may have; None where that is not known yet."""
        known = self._streams.get(stream)
        return None if known is None or known.size is None else max(1, int(self._most_bytes / known.size))

    def written(self, chunk: Chunk) -> list[bytes]:
        """A chunk was written: the streams of it that the server is to be asked for."""
        offsets = chunk.requests.offsets
        due = []
        for stream, start, stop in chunk.segments:
            known = self._streams.setdefault(stream, _Stream())
            known.sent += int(offsets[stop] - offsets[start])
            known.rows += stop - start
            if known.since == 0:
                due.append(stream)
            known.since = (known.since + 1) % ASK_EVERY
        return due

    def ask(self, server: Server, streams: Sequence[bytes]) -> None:
        """Learn how large the entries of these streams are, in one round trip. Raises ServerReplyError and kin."""
        asked = [command for stream in streams for command in (("MEMORY", "USAGE", stream), ("XLEN", stream))]
        replies = server.pipeline(asked)
        for command, reply in zip(asked, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
        for stream, usage, length in zip(streams, replies[0::2], replies[1::2], strict=True):
            known = self._streams[stream]
            if usage and length:
                known.size = min(usage / length, known.sent / known.rows)
