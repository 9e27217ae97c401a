"""History of entries between their producers and the sink, as far as records exist. Pure values.

Every entry carries (producer, sequence). A producer uses each sequence once: it never sends an entry with an unknown
outcome again under the same number. So a value that is in the sink twice is always a fault of the query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Acknowledged:
    """One XACK that was sent. committed: the last batch in the commit log just before; -1: none."""

    place: Place
    committed: int


@dataclass
class History:
    """History of one query.

    removed: entries that the test removed (trimmed, deleted): they may be missing;
    unordered: entries that correctly reached the query out of order;
    pending: entries that are pending for the query's consumers at the end;
    dead_letters: original entries of dead letters; bad: those of them that no column takes;
    acks_seen: False if acknowledgements were not recorded.
    """

    added: list[Added] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    removed: set[Place] = field(default_factory=set)
    unordered: set[Place] = field(default_factory=set)
    pending: list[Place] = field(default_factory=list)
    dead_letters: list[Place] = field(default_factory=list)
    bad: set[Place] = field(default_factory=set)
    acks_seen: bool = True

    def kept(self) -> list[Row]:
        """Return the committed rows in the order of the sink: batch, partition, position; or position in the stream."""
        return sorted((row for row in self.rows if row.kept), key=_order)

    def places(self, outcome: Outcome = Outcome.OK) -> list[Place]:
        """Return stream and ID of the entries with this outcome."""
        return [entry.place for entry in self.added if entry.outcome is outcome and entry.place is not None]

    def batches(self) -> dict[int, set[Place]]:
        """Return the entries that each batch has in the sink."""
        places: dict[int, set[Place]] = {}
        for row in self.kept():
            places.setdefault(row.batch, set()).add(row.place)
        return places


def _order(row: Row) -> tuple[str, int, int, int]:
    return ("", row.batch, row.partition, row.position) if row.lane is None else (row.lane[0], 0, 0, row.position)


def id_key(entry: str) -> tuple[int, int]:
    """Return an entry ID as a pair of numbers, for ordering."""
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq or 0)


def list_first(values: Iterable[object], limit: int = 5) -> str:
    """Return the first values for a message, and the number of all."""
    listed = [str(value) for value in values]
    return ", ".join(listed[:limit]) + (f", … ({len(listed)} in all)" if len(listed) > limit else "")
