"""Check for streams with large entries. Only the first and the last entry of a stream are looked at. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.units import counted, size
from spark_streams.connector.lag.survey import StreamSummary
from spark_streams.operations.doctor.finding import Finding, Level

LARGE_BYTES = 1_000_000
_NAMED = 5  # streams


def judge(streams: Sequence[StreamSummary]) -> list[Finding]:
    """Return the finding of those streams that have a large entry, the one with the largest first."""
    large = sorted((one for one in streams if one.entry_bytes > LARGE_BYTES), key=lambda one: -one.entry_bytes)
    if not large:
        return []
    named = ", ".join(f"{one.stream!r} ({size(one.entry_bytes)})" for one in large[:_NAMED])
    more = f" and {counted(len(large) - _NAMED, 'more stream')}" if len(large) > _NAMED else ""
    return [
        Finding(
            Level.NOTE,
            "streams",
            f"entries above {size(LARGE_BYTES)}: {named}{more}",
            "the server, a client and a task each hold such an entry in memory as a whole",
            "store large values elsewhere, and put their names into the entries",
        )
    ]
