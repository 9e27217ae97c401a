"""Part of a batch: what a task reads of one range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from spark_streams.connector.source.range import Range

By = Literal["all", "pending"] | bytes
ALL: Literal["all"] = "all"
PENDING: Literal["pending"] = "pending"


@dataclass(frozen=True)
class Part:
    """Entries of a range that a task reads.

    by: how they are found. ALL: all entries that the stream has in the range; the group has delivered them to nobody
    else. PENDING: those that are pending for the query's consumer, because others may have some of the range. Bytes:
    those with these IDs, as packed arguments without separators, as in `PendingPage.ids`."""

    range: Range
    by: By

    @property
    def stream(self) -> str:
        """Stream of the range."""
        return self.range.stream

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.range.count


_Entries = TypeVar("_Entries", Range, Part)


def pending_parts(ranges: Iterable[Range]) -> list[Part]:
    """Return what a task reads of ranges whose pending list was read."""
    return [Part(entries, PENDING) for entries in ranges]


def entries_per_stream(of: Iterable[Range | Part]) -> Counter[str]:
    """Return how many entries these ranges or parts have, per stream."""
    counts: Counter[str] = Counter()
    for entries in of:
        counts[entries.stream] += entries.count
    return counts


def by_stream(of: Iterable[_Entries]) -> dict[str, list[_Entries]]:
    """Return these ranges or parts in their order, per stream."""
    found: dict[str, list[_Entries]] = {}
    for entries in of:
        found.setdefault(entries.stream, []).append(entries)
    return found
