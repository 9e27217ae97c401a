"""Entries that XNACK (Redis 8.8) released: pending in their group, and for no consumer.

XPENDING shows them with an empty consumer name and idle since -1, and its summary counts them in no consumer. A claim
takes them however long it asks entries to have been idle, and XPENDING … IDLE lists them likewise. So a time that
nothing can have waited names exactly them.
"""

from __future__ import annotations

from spark_streams.wire.connection.connection import Reply

RELEASED_IDLE = 1 << 50  # milliseconds
SHOWN = "(released)"  # stands in the place of a consumer's name
FATAL = (1 << 63) - 1  # deliveries: XNACK FATAL sets an entry's counter to this, and no count of deliveries reaches it


def released_in(summary: Reply) -> int:
    """Number of released entries of a group. summary: the reply to XPENDING key group."""
    total, _, _, consumers = summary
    return max(0, int(total) - sum(int(count) for _, count in consumers or ()))
