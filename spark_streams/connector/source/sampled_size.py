"""Estimate the average size of the next entries of streams, from a sample of each (maxBytesPerTrigger).

The size of an entry is the bytes of its field names and values. Samples are read with XRANGE, as tasks read entries,
and need no further right. MEMORY USAGE covers more entries but also counts pending entries, on some servers several
times (docs/internals/facts.md, R122).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.wire.connection.server import Server

_Command = tuple[str | bytes | int, ...]


def average_sizes(server: Server, after: Mapping[str, StreamId], limits: Limits = LIMITS) -> dict[str, float]:
    """Return the average bytes of each stream's entries above the given ID, at least 1, in two round trips.

    The first entry is read alone. Its size decides how many more entries the sample has, so that a sample of large
    entries is small. If a stream has no further entry, its last one counts: entries below the ID may be claimed.
    Raises ServerReplyError or a subclass, ServerUnreachableError.
    """
    firsts = _sizes(server, {stream: _above(stream, position, 1) for stream, position in after.items()})
    limit = min(limits.sampled_entries, limits.sampled_at_once // max(1, len(after)))
    counts = {
        stream: min(limit, limits.sampled_bytes // max(1, sum(sizes))) for stream, sizes in firsts.items() if sizes
    }
    further = {stream: _above(stream, after[stream], count) for stream, count in counts.items() if count > 1}
    last: dict[str, _Command] = {
        stream: ("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream, sizes in firsts.items() if not sizes
    }
    samples = firsts | _sizes(server, further | last)
    return {stream: max(1.0, sum(sizes) / max(1, len(sizes))) for stream, sizes in samples.items()}


def _above(stream: str, position: StreamId, count: int) -> _Command:
    return ("XRANGE", stream, b"(" + bytes(position), "+", "COUNT", count)


def _sizes(server: Server, commands: Mapping[str, _Command]) -> dict[str, list[int]]:
    """Return the bytes of each entry that these commands return, by stream."""
    replies = server.execute_each(list(commands.values()))
    return {stream: [_bytes_of(fields) for _, fields in reply] for stream, reply in zip(commands, replies, strict=True)}


def _bytes_of(fields: Iterable[bytes]) -> int:
    return sum(len(word) for word in fields)
