"""How many bytes the next entries of a stream have, by a sample of the first few of them.

The bytes of an entry are those of its field names and values. A sample says little of what follows far behind it: the
size of entries may change. So it holds for a number of entries only (`SampledSize.reach`), and a large batch is taken
in parts, each with a sample of its own in front.

A stream's first entry is read alone and tells how many more the sample may have, so that a sample of large entries is
small. Samples are read with XRANGE, as tasks read entries, and need no further right. MEMORY USAGE would tell more of
a stream, but counts what is pending along, on some servers several times over (docs/facts.md, R122).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.ids import StreamId
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.server import Server


@dataclass(frozen=True)
class SampledSize:
    """average: bytes of an entry, 1 at least; reach: how many entries may be taken by this sample."""

    average: float
    reach: int

    def fitting(self, size: int) -> int:
        """How many entries have about so many bytes: the last of them may go beyond, and one is always taken."""
        return min(self.reach, max(1, math.ceil(size / self.average)))


def sampled_sizes(server: Server, after: Mapping[str, StreamId], limits: Limits = LIMITS) -> dict[str, SampledSize]:
    """The size of the next entries of each stream, those above the given id, in at most two round trips.

    A stream without such an entry has an average of 1 byte. Raises ServerReplyError or its kin, ServerUnreachableError.
    """
    first = _sizes(server, after, dict.fromkeys(after, 1))
    most = min(limits.sampled_entries, limits.sampled_at_once // max(1, len(after)))
    counts = {stream: min(most, limits.sampled_bytes // max(1, size)) for stream, (_, size) in first.items()}
    more = _sizes(server, after, {stream: count for stream, count in counts.items() if count > 1})
    return {
        stream: SampledSize(max(1.0, size / max(1, entries)), limits.sample_reach * max(1, entries))
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
