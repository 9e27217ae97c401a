"""Judges a history: what was lost, doubled, reordered, acknowledged too early, made up, left pending. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from tools.chaos.history import History, Outcome, Place, Row, Value, id_key, shown


@dataclass
class Report:
    """What is wrong, by kind; every list is empty after a good run.

    lost           acknowledged XADDs whose row is not in the sink, and nobody took the entry away
    duplicated     rows that are in the sink twice, by entry or by value
    reordered      rows whose entry stands below one of the same stream that came before
    early          entries acknowledged although their batch was not in the commit log, or that never reached the sink
    phantom        rows that no producer sent, that the server refused, or that belong to another consumer
    changed        entries that an attempt of a batch wrote and that the batch does not hold in the end
    unseen         entries that are no longer pending although no acknowledgement of them was seen
    pending        entries that the group still holds for this query after a drain
    buried         entries that became dead letters though nothing is wrong with them
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
        """How many of each kind, the kinds without any left out."""
        return {one.name: len(getattr(self, one.name)) for one in fields(self) if getattr(self, one.name)}

    def forgive(self, *kinds: str) -> None:
        """These kinds are no fault in this run."""
        for kind in kinds:
            setattr(self, kind, [])

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.faults())

    def __str__(self) -> str:
        if not self:
            return "nothing is wrong"
        return "\n".join(f"{kind}: {shown(getattr(self, kind))}" for kind in self.faults())


def check(history: History) -> Report:
    """Hold what came out against what went in."""
    report = Report()
    kept = history.kept()
    buried = Counter(history.letters)
    arrived = Counter(row.value for row in kept)
    places = Counter(row.place for row in kept)

    may_miss = history.gone | history.taken | history.either | set(buried)
    for one in history.added:
        if one.outcome is Outcome.OK and one.value not in arrived and one.place not in may_miss:
            report.lost.append(one.value)

    report.duplicated = [value for value, times in arrived.items() if times > 1]
    report.duplicated += [r.value for r in kept if places[r.place] > 1 and arrived[r.value] == 1]
    report.buried = [place for place in buried if place not in history.bad]
    report.buried_twice = [place for place, times in buried.items() if times > 1]
    report.pending = list(history.pending)

    expected = {one.value: one for one in history.added if one.outcome is not Outcome.FAILED}
    for row in kept:
        sent = expected.get(row.value)
        if sent is None or row.place in history.taken or (sent.place is not None and sent.place != row.place):
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
        if any(at < highest.get(key, at) for key, at in rising.items()):
            report.reordered.append(row.place)
        for key, at in rising.items():
            highest[key] = max(at, highest.get(key, at))


def _rising(row: Row, history: History) -> dict[object, tuple[int, int]]:
    """What must not become less from this row to a later one, by what it is compared with."""
    stream, entry = row.place
    found: dict[object, tuple[int, int]] = {}
    if row.place not in history.unordered:
        if row.lane is None:
            found[stream] = id_key(entry)
        else:
            found["lane", row.lane, stream, row.batch] = id_key(entry)
            found["batches", row.lane[0], stream] = (row.batch, 0)
    return found


def _check_attempts(history: History, report: Report) -> None:
    """Every attempt of a batch, also those that do not count, may only write what the batch holds in the end."""
    final = history.batches()
    for row in history.rows:
        if not row.kept and row.place not in final.get(row.batch, set()) | history.gone | history.either:
            report.changed.append((row.batch, row.place))


def _check_acknowledgements(history: History, report: Report) -> None:
    batch_of = {row.place: row.batch for row in history.kept()}
    buried = set(history.letters)
    seen = set()
    for ack in history.acknowledged:
        seen.add(ack.place)
        batch = batch_of.get(ack.place)
        if batch is None and ack.place in history.gone | history.either | buried:
            continue
        if batch is None or batch > ack.committed:
            report.early.append(ack.place)
    open_ones = seen | set(history.pending) | history.gone | history.forgotten
    report.unseen = [place for place in batch_of if place not in open_ones]
