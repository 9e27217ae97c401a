"""Entries that are gone before the query has read them: an error that names them, or counted and passed over.

What is lost is found elsewhere: by the account (loss_account), by what stands at the groups (gone_or_moved), and by
whoever reads a batch again. Here it is decided what that means, by failOnDataLoss; the counts are logged and told with
the query's progress.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from spark_streams.errors import DataLossError

GO_ON = "set failOnDataLoss=false to go on without them"  # a remedy
_log = logging.getLogger("spark_streams.source")


@dataclass
class DataLoss:
    """allowed: failOnDataLoss=false; counts: how many entries this run has passed over, per stream."""

    allowed: bool
    counts: Counter[str] = field(default_factory=Counter)

    def report(self, stream: str, count: int, problem: str, remedy: str) -> None:
        """Entries are lost: counted, or DataLossError. The error reads `N entries PROBLEM; REMEDY`."""
        if count and not self.allowed:
            raise DataLossError(f"stream {stream!r}: {count} entries {problem}; {remedy}")
        self.add(stream, count, problem)

    def add(self, stream: str, count: int, problem: str) -> None:
        """Count a loss that is allowed, or that nothing can stop any more."""
        if count:
            self.counts[stream] += count
            _log.warning("stream %r: %d entries are lost: %s", stream, count, problem)
