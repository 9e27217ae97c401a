"""What producers and sinks write down of entries. Pure. judge.py judges it.

Every entry carries (producer, sequence). A producer uses each sequence once: it never sends an entry with an unknown
outcome again under the same number. So a value that is in the sink twice is always a fault of the query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

Place = tuple[str, str]  # stream, entry id
Value = tuple[str, int]  # producer, sequence


class Outcome(StrEnum):
    """Outcome of an XADD for its producer: the reply was an ID, an error, or missing."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Added:
    """One XADD. id: None unless the outcome is OK."""

    stream: str
    value: Value
    outcome: Outcome
    id: str | None = None

    @property
    def place(self) -> Place | None:
        """Stream and ID of the entry, if the ID is known."""
        return None if self.id is None else (self.stream, self.id)


@dataclass(frozen=True)
class Row:
    """One row that reached the sink.

    position: the row's number among the rows of this task attempt; kept: whether the sink's record of the batch names
    this attempt (other attempts failed, lost against a speculative task, or were cut off by a crash).

    lane: the stream's name and two partitions (chaos.sink), if tasks write concurrently to one stream. `position` is
    then the row's number in the stream, and rows are in order only within a lane and between batches. None: a partition
    is a file.
    """

    place: Place
    value: Value
    batch: int
    partition: int
    attempt: int
    position: int
    kept: bool = True
    lane: tuple[str, int, int] | None = None


def order(row: Row) -> tuple[str, int, int, int]:
    """Return the place of a row among those of its sink."""
    return ("", row.batch, row.partition, row.position) if row.lane is None else (row.lane[0], 0, 0, row.position)


def id_key(entry: str) -> tuple[int, int]:
    """Return an entry ID as a pair of numbers, for ordering."""
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq or 0)


def list_first(values: Iterable[object], limit: int = 5) -> str:
    """Return the first values for a message, and the number of all."""
    listed = [str(value) for value in values]
    return ", ".join(listed[:limit]) + (f", … ({len(listed)} in all)" if len(listed) > limit else "")
