"""Judge a history: which entries are lost, duplicated, reordered, acknowledged too early, unknown, or pending. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from spark_streams.operations.verify.history import History, Outcome, Place, Row, Value, id_key, list_first


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

    def forgive(self, *kinds: str) -> None:
        """Clear these kinds, which are no fault in this run."""
        for kind in kinds:
            setattr(self, kind, [])

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.faults())

    def __str__(self) -> str:
        if not self:
            return "nothing is wrong"
        return "\n".join(f"{kind}: {list_first(getattr(self, kind))}" for kind in self.faults())


def check(history: History) -> Report:
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
