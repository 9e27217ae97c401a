"""Estimate the size of a stream's next entries from a sample of the first of them.

The size of an entry is the bytes of its field names and values. Sizes may change, so a sample represents only a limited
number of entries behind it (`SampledSize.fitting`). A large batch is taken in parts, each with its own sample in front.

A stream's first entry is read alone. Its size decides how many more entries the sample has, so that a sample of large
entries is small. Samples are read with XRANGE, as tasks read entries, and need no further right. MEMORY USAGE
covers more entries but also counts pending entries, on some servers several times (docs/internals/facts.md, R122).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.model.ids import StreamId
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server

_REACH = 20  # entries that each entry of a sample represents


@dataclass(frozen=True)
class SampledSize:
    """average: bytes of an entry, at least 1; entries: number of entries in the sample, at least 1."""

    average: float
    entries: int

    def fitting(self, size: float) -> int:
        """Return how many entries have about `size` bytes, at most as many as the sample represents. One entry always
        fits, and the last one may exceed the size."""
        return min(_REACH * self.entries, max(1, math.ceil(size / self.average)))


def sampled_sizes(
    server: Server,
    after: Mapping[str, StreamId],
    limits: Limits = LIMITS,
    previous: Mapping[str, SampledSize] | None = None,
) -> dict[str, SampledSize]:
    """Sample the entries of each stream above the given ID, in at most two round trips.

    previous: samples of the entries before these, which save a round trip. A stream without further entries has an
    average of 1 byte. Raises ServerReplyError or a subclass, ServerUnreachableError.
    """
    expected = {stream: size.average for stream, size in (previous or {}).items() if stream in after}
    firsts = _sizes(server, after, dict.fromkeys(after.keys() - expected.keys(), 1))
    expected |= {stream: size for stream, (_, size) in firsts.items()}
    limit = min(limits.sampled_entries, limits.sampled_at_once // max(1, len(after)))
    counts = {
        stream: max(1, min(limit, math.floor(limits.sampled_bytes / max(1, size)))) for stream, size in expected.items()
    }
    larger = _sizes(server, after, {s: count for s, count in counts.items() if count > 1 or s not in firsts})
    return {
        stream: SampledSize(max(1.0, size / max(1, entries)), max(1, entries))
        for stream, (entries, size) in (firsts | larger).items()
    }


def _sizes(server: Server, after: Mapping[str, StreamId], counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Read up to `counts` entries of each stream: their number and their bytes."""
    commands = [
        ("XRANGE", stream, b"(" + bytes(after[stream]), "+", "COUNT", count) for stream, count in counts.items()
    ]
    sizes: dict[str, tuple[int, int]] = {}
    for command, reply in zip(commands, server.execute_each(commands), strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        sizes[command[1]] = len(reply), sum(len(word) for _, fields in reply for word in fields)
    return sizes
