"""Entries that are gone before the query has read them: an error that names them, or counted and passed over.

The server is asked whether the group stands where the query left it. Where `failOnDataLoss` is false, a group that is
gone is made again at the checkpoint, and what was lost is logged and told with the query's progress.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from spark_streams.source.group.group_state import GroupState
from spark_streams.source.membership import Membership

_log = logging.getLogger("spark_streams.source")


@dataclass
class DataLoss:
    """How many entries this run has passed over, per stream; allowed: failOnDataLoss=false."""

    allowed: bool
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, stream: str, count: int, why: str) -> None:
        """Count a loss that is allowed."""
        if count:
            self.counts[stream] = self.counts.get(stream, 0) + count
            _log.warning("stream %r: %d entries are lost: %s", stream, count, why)


def shared(member: Membership, state: GroupState) -> bool:
    """Whether others read from the group; consumers that hold our own claims and pieces are not others."""
    return any(not member.made(other.name) for other in state.others)
