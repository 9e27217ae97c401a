"""Who reads: a consumer in a group, on some streams; and whose the consumers are that a query makes for itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What follows a query's name in those of the consumers that it makes. Earlier versions made `noted`, which hold
# nothing; they are deleted when a query starts.
OF_A_QUERY = re.compile("~(?:claim|held|noted)~")


@dataclass(frozen=True)
class Membership:
    """Who we are: a consumer of a group, over some streams."""

    streams: tuple[str, ...]
    group: str
    consumer: str

    def made(self, consumer: str) -> bool:
        """Whether the query has made this consumer, for a claim or a piece of a batch."""
        return consumer != self.consumer and owner_of(consumer) == self.consumer


def owner_of(consumer: str) -> str:
    """The query's consumer whose claim or held piece this one is; itself otherwise."""
    return OF_A_QUERY.split(consumer)[0]
