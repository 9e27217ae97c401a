"""The query's consumer in its group, and the names of further consumers that a query creates."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Follows the query's consumer name in the names of consumers that the query creates.
OF_A_QUERY = re.compile("~(?:claim|held)~")


@dataclass(frozen=True)
class Membership:
    """Consumer of a group on some streams."""

    streams: tuple[str, ...]
    group: str
    consumer: str

    def owns(self, consumer: str) -> bool:
        """Whether the query has created this consumer, for a claim or a piece of a batch."""
        return consumer != self.consumer and owner_of(consumer) == self.consumer


def owner_of(consumer: str) -> str:
    """Return the query's consumer that created this one for a claim or a piece; otherwise the consumer itself."""
    return OF_A_QUERY.split(consumer)[0]
