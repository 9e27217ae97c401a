"""Entries that are gone before the query has read them: an error that names them, or counted and passed over.

What is lost is found elsewhere: by the account (loss_account), by what stands at the groups (gone_or_moved), and by
whoever reads a batch again. Here it is decided what that means, by failOnDataLoss. The counts are logged, told with the
query's progress, and written into the next offset (`losses`): if there is nothing to read, a batch of no entries
carries them (microbatch.trigger), so that a restart does not count them again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_streams.errors import DataLossError
from spark_streams.ids import StreamId
from spark_streams.source.membership import Membership

GO_ON = "set failOnDataLoss=false to go on without them"  # a remedy
_log = logging.getLogger("spark_streams.source")


@dataclass
class DataLoss:
    """allowed: failOnDataLoss=false; counts: how many entries this run has passed over, per stream; unlogged: those of
    them that no offset has yet; at_the_end: streams whose last entries are counted already, so that what tasks note of
    the last batch is among them."""

    allowed: bool
    counts: Counter[str] = field(default_factory=Counter)
    unlogged: Counter[str] = field(default_factory=Counter)
    at_the_end: set[str] = field(default_factory=set)

    def report(self, stream: str, count: int, problem: str, remedy: str) -> None:
        """Entries are lost: counted, or DataLossError. The error reads `N entries PROBLEM; REMEDY`."""
        if count and not self.allowed:
            raise DataLossError(f"stream {stream!r}: {count} entries {problem}; {remedy}")
        self.add(stream, count, problem)

    def add(self, stream: str, count: int, problem: str) -> None:
        """Count a loss that is allowed, or that nothing can stop any more."""
        if count:
            self.counts[stream] += count
            self.unlogged[stream] += count
            _log.warning("stream %r: %d entries are lost: %s", stream, count, problem)

    def logged(self) -> None:
        """An offset has what is counted so far."""
        self.unlogged.clear()

    def noted(self, losses: Mapping[str, int], problem: str) -> None:
        """What tasks of the last batch have noted."""
        for stream, count in losses.items():
            if stream not in self.at_the_end:
                self.add(stream, count, problem)


def passed_over(losses: DataLoss, member: Membership, stream: str, count: int, above: StreamId) -> None:
    """Entries were gone before the query read them. Raises DataLossError unless that is allowed."""
    losses.report(
        stream,
        count,
        f"above {above} were trimmed or deleted before group {member.group!r} read them",
        f"keep the stream longer than the lag of its slowest group, or {GO_ON}",
    )
