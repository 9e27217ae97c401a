"""Entries that XNACK (Redis 8.8) released: pending in their group, and for no consumer.

XPENDING lists them with an empty consumer name and an idle time of -1, and its summary counts them for no consumer. A
claim takes them whatever minimum idle time it has, and XPENDING … IDLE lists them likewise. So an impossibly long idle
time selects exactly these entries.
"""

from __future__ import annotations

from spark_streams.connector.wire.connection.connection import Reply

RELEASED_IDLE = 1 << 50  # milliseconds
SHOWN = "(released)"  # shown instead of a consumer's name
FATAL = (1 << 63) - 1  # deliveries: XNACK FATAL sets an entry's counter to this, and no other delivery count reaches it


def released_in(summary: Reply) -> int:
    """Number of released entries of a group. summary: the reply to XPENDING key group."""
    total, _, _, consumers = summary
    return max(0, int(total) - sum(int(count) for _, count in consumers or ()))
