"""How many bytes the next entries of a stream have, by a sample of the first few of them.

The bytes of an entry are those of its field names and values. A sample says little of what follows far behind it: the
size of entries may change. So it counts for a number of entries only (`SampledSize.fitting`), and a large batch is
taken in parts, each with a sample of its own in front.

A stream's first entry is read alone and tells how many more the sample may have, so that a sample of large entries is
small. Samples are read with XRANGE, as tasks read entries, and need no further right. MEMORY USAGE would tell more of
a stream, but counts what is pending along, on some servers several times over (docs/internals/facts.md, R122).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.model.ids import StreamId
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server

_REACH = 20  # entries that a sample counts for, for each one that it has


@dataclass(frozen=True)
class SampledSize:
    """average: bytes of an entry, 1 at least; entries: how many the sample has, 1 at least."""

    average: float
    entries: int

    def fitting(self, size: float) -> int:
        """How many entries have about so many bytes, and are within reach of the sample. One always fits, and the last
        one may go beyond the size."""
        return min(_REACH * self.entries, max(1, math.ceil(size / self.average)))


def sampled_sizes(
    server: Server,
    after: Mapping[str, StreamId],
    limits: Limits = LIMITS,
    before: Mapping[str, SampledSize] | None = None,
) -> dict[str, SampledSize]:
    """The size of the next entries of each stream, those above the given id, in at most two round trips.

    before: samples of the entries before these, which save a round trip. A stream without such an entry has an average
    of 1 byte. Raises ServerReplyError or its kin, ServerUnreachableError.
    """
    known = {stream: size.average for stream, size in (before or {}).items() if stream in after}
    first = _sizes(server, after, dict.fromkeys(after.keys() - known.keys(), 1))
    known |= {stream: size for stream, (_, size) in first.items()}
    most = min(limits.sampled_entries, limits.sampled_at_once // max(1, len(after)))
    counts = {
        stream: max(1, min(most, math.floor(limits.sampled_bytes / max(1, size)))) for stream, size in known.items()
    }
    more = _sizes(server, after, {s: count for s, count in counts.items() if count > 1 or s not in first})
    return {
        stream: SampledSize(max(1.0, size / max(1, entries)), max(1, entries))
        for stream, (entries, size) in (first | more).items()
    }


def _sizes(server: Server, after: Mapping[str, StreamId], counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Per stream: how many of so many entries there are, and their bytes."""
    asked = [("XRANGE", stream, b"(" + bytes(after[stream]), "+", "COUNT", count) for stream, count in counts.items()]
    found: dict[str, tuple[int, int]] = {}
    for command, reply in zip(asked, server.each(asked), strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        found[command[1]] = len(reply), sum(len(word) for _, fields in reply for word in fields)
    return found
