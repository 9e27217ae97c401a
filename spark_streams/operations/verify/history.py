"""History of entries between their producers and the sink, as far as records exist, and its judge. Pure.

Every entry carries (producer, sequence). A producer uses each sequence once: it never sends an entry with an unknown
outcome again under the same number. So a value that is in the sink twice is always a fault of the query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
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


@dataclass
class Report:
    """What is wrong, by kind. Every list is empty after a good run.

    lost           acknowledged XADDs whose row is not in the sink, although no client removed the entry
    duplicated     rows that are in the sink twice, by entry or by value
    reordered      rows whose entry has a lower ID than an earlier row of the same stream
    early          entries acknowledged although their batch was not in the commit log, or never reached the sink
    phantom        rows that no producer sent, or that the server refused
    changed        entries that an attempt of a batch wrote and that the batch does not contain in the end
    unseen         entries that are no longer pending although no acknowledgement of them was recorded
    pending        entries that are still pending for this query after a drain
    buried         entries that became dead letters although nothing is wrong with them
    buried_twice   entries with more than one dead letter
    """

    lost: list[Value] = field(default_factory=list)
    duplicated: list[Value] = field(default_factory=list)
    reordered: list[Place] = field(default_factory=list)
    early: list[Place] = field(default_factory=list)
    phantom: list[Value] = field(default_factory=list)
    changed: list[tuple[int, Place]] = field(default_factory=list)
    unseen: list[Place] = field(default_factory=list)
    pending: list[Place] = field(default_factory=list)
    buried: list[Place] = field(default_factory=list)
    buried_twice: list[Place] = field(default_factory=list)

    def faults(self) -> dict[str, int]:
        """Return the number of faults by kind, without the kinds that have none."""
        return {kind.name: len(getattr(self, kind.name)) for kind in fields(self) if getattr(self, kind.name)}

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.faults())

    def __str__(self) -> str:
        if not self:
            return "nothing is wrong"
        return "\n".join(f"{kind}: {list_first(getattr(self, kind))}" for kind in self.faults())


def check_history(history: History) -> Report:
    """Compare the rows in the sink with the entries that were sent."""
    report = Report()
    rows = history.kept()
    buried = Counter(history.dead_letters)
    arrived = Counter(row.value for row in rows)
    places = Counter(row.place for row in rows)

    may_miss = history.removed | set(buried)
    for entry in history.added:
        if entry.outcome is Outcome.OK and entry.value not in arrived and entry.place not in may_miss:
            report.lost.append(entry.value)

    report.duplicated = [value for value, times in arrived.items() if times > 1]
    report.duplicated += [r.value for r in rows if places[r.place] > 1 and arrived[r.value] == 1]
    report.buried = [place for place in buried if place not in history.bad]
    report.buried_twice = [place for place, times in buried.items() if times > 1]
    report.pending = list(history.pending)

    expected = {entry.value: entry for entry in history.added if entry.outcome is not Outcome.FAILED}
    for row in rows:
        sent = expected.get(row.value)
        if sent is None or (sent.place is not None and sent.place != row.place):
            report.phantom.append(row.value)

    _check_order(history, report)
    _check_attempts(history, report)
    if history.acks_seen:
        _check_acknowledgements(history, report)
    return report


def _check_order(history: History, report: Report) -> None:
    highest: dict[object, tuple[int, int]] = {}
    for row in history.kept():
        rising = _rising(row, history)
        if any(position < highest.get(key, position) for key, position in rising.items()):
            report.reordered.append(row.place)
        for key, position in rising.items():
            highest[key] = max(position, highest.get(key, position))


def _rising(row: Row, history: History) -> dict[object, tuple[int, int]]:
    """Return the positions of a row that later rows must not be below, by the key of comparable rows."""
    stream, entry = row.place
    positions: dict[object, tuple[int, int]] = {}
    if row.place not in history.unordered:
        if row.lane is None:
            positions[stream] = id_key(entry)
        else:
            positions["lane", row.lane, stream, row.batch] = id_key(entry)
            positions["batches", row.lane[0], stream] = (row.batch, 0)
    return positions


def _check_attempts(history: History, report: Report) -> None:
    """Check that every attempt of a batch, failed ones included, wrote only entries of the final batch."""
    final = history.batches()
    for row in history.rows:
        if not row.kept and row.place not in final.get(row.batch, set()) | history.removed:
            report.changed.append((row.batch, row.place))


def _check_acknowledgements(history: History, report: Report) -> None:
    batch_of = {row.place: row.batch for row in history.kept()}
    buried = set(history.dead_letters)
    seen = set()
    for ack in history.acknowledged:
        seen.add(ack.place)
        batch = batch_of.get(ack.place)
        if batch is None and ack.place in history.removed | buried:
            continue
        if batch is None or batch > ack.committed:
            report.early.append(ack.place)
    explained = seen | set(history.pending) | history.removed
    report.unseen = [place for place in batch_of if place not in explained]
