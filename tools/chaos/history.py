"""What happened to entries between their producers and the sink, as far as anybody saw it. Pure values.

Every entry carries (producer, sequence), and a producer uses a sequence once: what was sent with an unknown outcome is
not sent again under the same number. So a value that the sink holds twice is always somebody's fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

Place = tuple[str, str]  # stream, entry id
Value = tuple[str, int]  # producer, sequence


class Outcome(StrEnum):
    """What a producer knows of its XADD: an id came back, an error did, or nothing did."""

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
        """Where the entry is, if that is known."""
        return None if self.id is None else (self.stream, self.id)


@dataclass(frozen=True)
class Row:
    """One row that reached the sink.

    position: the row's number within what this task attempt wrote; kept: whether the sink's own record of the batch
    names this attempt (others failed, were overtaken by a twin, or were cut off by a crash).

    lane: where tasks write side by side into one stream, `position` is the row's number in that, and rows have an
    order only within a lane and from batch to batch: the stream's name, and two partitions (chaos.sink). None: a
    partition is a file.
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
    """One XACK as it was sent. committed: the last batch in the commit log just before that; -1: none."""

    place: Place
    committed: int


@dataclass
class History:
    """All of it, for one query.

    gone: entries that the test took away (trimmed, deleted, acknowledged by others): they may be missing;
    unordered: entries that reached the query out of turn and rightly so (claimed from a dead consumer);
    forgotten: entries whose pending list went with their group: nobody can acknowledge them;
    taken: entries that other consumers of the group were given; the query must not have them;
    either: entries that the query may have or not: somebody else has them in hand, too;
    pending: what the group still holds for the query's consumers at the end;
    letters: originals of dead letters; bad: entries that ought to become letters;
    acks_seen: False where nobody recorded acknowledgements.
    """

    added: list[Added] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    gone: set[Place] = field(default_factory=set)
    unordered: set[Place] = field(default_factory=set)
    forgotten: set[Place] = field(default_factory=set)
    taken: set[Place] = field(default_factory=set)
    either: set[Place] = field(default_factory=set)
    pending: list[Place] = field(default_factory=list)
    letters: list[Place] = field(default_factory=list)
    bad: set[Place] = field(default_factory=set)
    acks_seen: bool = True

    def kept(self) -> list[Row]:
        """The rows that count, in the order of the sink: batch, partition, position, or as they stand in a stream."""
        return sorted((row for row in self.rows if row.kept), key=_order)

    def places(self, outcome: Outcome = Outcome.OK) -> list[Place]:
        """Where the entries with this outcome are."""
        return [one.place for one in self.added if one.outcome is outcome and one.place is not None]

    def batches(self) -> dict[int, set[Place]]:
        """What each batch left in the sink."""
        found: dict[int, set[Place]] = {}
        for row in self.kept():
            found.setdefault(row.batch, set()).add(row.place)
        return found


def _order(row: Row) -> tuple[str, int, int, int]:
    return ("", row.batch, row.partition, row.position) if row.lane is None else (row.lane[0], 0, 0, row.position)


def id_key(entry: str) -> tuple[int, int]:
    """An entry id as a number pair, for ordering."""
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq or 0)


def shown(things: Iterable[object], most: int = 5) -> str:
    """The first few of them for a message."""
    listed = [str(thing) for thing in things]
    return ", ".join(listed[:most]) + (f", … ({len(listed)} in all)" if len(listed) > most else "")
