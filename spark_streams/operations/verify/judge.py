"""The judge of "lost or twice": one row of facts for each entry, what is wrong with it, and what excuses that. Pure.

`rstream verify`, chaos, the simulation, the soak and the tests ask it. A fault is excused by a reason of its entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from spark_streams.operations.verify.history import Added, Outcome, Place, Row, Value, id_key, list_first, order

_NO_REASON = frozenset[str]()


class Fault(StrEnum):
    """What is wrong with an entry."""

    LOST = "lost"  # it was acknowledged to its producer, did not arrive, and nothing has happened to it …
    SILENT = "silent"  # … or something has, and nothing has reported the loss
    UNCOUNTED = "uncounted"  # a query that goes on after losses has counted fewer …
    COUNTED_TOO_MUCH = "counted too much"  # … or more
    TWICE = "twice"  # the sink and the dead letters have it, or its value, twice
    PHANTOM = "phantom"  # the sink has it, and no producer has sent it, or the server has refused it
    REORDERED = "reordered"  # an earlier row of its stream has a higher ID
    EARLY = "early"  # it was acknowledged before its batch was in the commit log, or never arrived
    PENDING = "pending"  # it is still pending after all was read
    BURIED = "buried"  # it is a dead letter although nothing is wrong with it
    CHANGED = "changed replay"  # an attempt of a batch has it, and the batch does not in the end
    UNSEEN = "unseen"  # it is not pending any more, and nobody has seen its acknowledgement
    FALSE_ALARM = "false alarm"  # a loss is reported, and nothing has happened


@dataclass
class Facts:
    """What is known of one entry, or of a report about a stream (it has no value).

    sent: None: by no producer; rows: in the sink, in their order; tried: of attempts that the sink does not keep;
    letters: dead letters; is_bad: it must become one; acknowledged: the last committed batch at each XACK, None: those
    were not recorded; is_reported: as lost; after: what has happened that may have removed it.

    The rest are reasons: why it may be missing, there twice, out of order, still pending; or why its loss may be
    reported although it is none.
    """

    place: Place
    value: Value | None = None
    sent: Outcome | None = None
    rows: list[Row] = field(default_factory=list)
    tried: list[Row] = field(default_factory=list)
    letters: int = 0
    is_bad: bool = False
    acknowledged: list[int] | None = None
    is_pending: bool = False
    is_reported: bool = False
    after: frozenset[str] = _NO_REASON
    may_miss: frozenset[str] = _NO_REASON
    may_repeat: frozenset[str] = _NO_REASON
    may_reorder: frozenset[str] = _NO_REASON
    may_wait: frozenset[str] = _NO_REASON
    may_count: frozenset[str] = _NO_REASON


@dataclass(frozen=True)
class Counted:
    """What a query that goes on after losses has counted in a stream. again: what was counted before, and may be once
    more; at_least: it may not know how many; may_repeat: several runs may have counted the same; stops: it goes on no
    more, so each loss that is left must be reported by name."""

    number: int
    again: int = 0
    at_least: bool = False
    may_repeat: bool = False
    stops: bool = False


@dataclass
class Judgement:
    """found: what is wrong, with the entries; used: reasons that have excused something, those of an entry together."""

    found: dict[Fault, list[Facts]] = field(default_factory=dict)
    used: Counter[frozenset[str]] = field(default_factory=Counter)

    def note(self, fault: Fault, entry: Facts, reasons: frozenset[str] = _NO_REASON) -> None:
        """Note a fault, or the reasons that excuse it."""
        if reasons:
            self.used[reasons] += 1
        else:
            self.found.setdefault(fault, []).append(entry)

    def counts(self) -> dict[str, int]:
        """Return the number of entries of each fault that there is."""
        return {str(fault): len(self.found[fault]) for fault in Fault if fault in self.found}

    def named(self, fault: Fault) -> list[str]:
        """Return values or places of the entries with a fault."""
        by_value = fault in (Fault.LOST, Fault.TWICE, Fault.PHANTOM)
        found = self.found.get(fault, ())
        return [" ".join(map(str, one.value if one.value and by_value else one.place)) for one in found]

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.found)

    def __str__(self) -> str:
        lines = [f"{fault}: {list_first(self.named(fault))}" for fault in Fault if fault in self.found]
        return "\n".join(lines) or "nothing is wrong"


def judge(entries: Iterable[Facts], counted: Mapping[str, Counted] | None = None) -> Judgement:
    """Judge entries. counted: by stream, of a query that goes on after losses."""
    result, entries, values = Judgement(), list(entries), set[Value]()
    missing: dict[str, list[Facts]] = {stream: [] for stream in counted or ()}
    for entry in entries:
        found = {row.value for row in entry.rows}
        if entry.sent is Outcome.OK and not (entry.value in found or entry.letters or entry.is_reported):
            if entry.place[0] in missing:
                missing[entry.place[0]].append(entry)
            else:
                result.note(Fault.SILENT if entry.after else Fault.LOST, entry, entry.may_miss)
        if len(entry.rows) + entry.letters > 1 or found & values:
            result.note(Fault.TWICE, entry, entry.may_repeat)
        values |= found
        if found and (found != {entry.value} or entry.sent not in (Outcome.OK, Outcome.UNKNOWN)):
            result.note(Fault.PHANTOM, entry)
        if entry.is_pending:
            result.note(Fault.PENDING, entry, entry.may_wait)
        if entry.letters and not entry.is_bad:
            result.note(Fault.BURIED, entry)
        if entry.value is None and entry.is_reported and not entry.after:
            result.note(Fault.FALSE_ALARM, entry, entry.may_count)
        if any(row.batch not in {kept.batch for kept in entry.rows} for row in entry.tried):
            result.note(Fault.CHANGED, entry, entry.may_miss)
        for committed in entry.acknowledged or ():
            if not entry.rows and not entry.letters:
                result.note(Fault.EARLY, entry, entry.may_miss)
            elif entry.rows and entry.rows[-1].batch > committed:
                result.note(Fault.EARLY, entry)
        if entry.rows and entry.acknowledged == [] and not entry.is_pending:
            result.note(Fault.UNSEEN, entry, entry.may_miss)
    for stream, count in (counted or {}).items():
        may_count = sum(bool(entry.may_count) for entry in entries if entry.place[0] == stream)
        _judge_count(stream, count, missing[stream], may_count, result)
    _judge_order(entries, result)
    return result


def _judge_count(stream: str, count: Counted, missing: list[Facts], may_count: int, result: Judgement) -> None:
    """Assign what was counted to the entries that are missing, first to those that must be."""
    result.used.update(entry.may_miss for entry in missing if entry.may_miss)
    must = [entry for entry in missing if not entry.may_miss]
    left = must[(len(must) if count.at_least and count.number else count.number) :]
    if count.stops:
        for entry in left:
            result.note(Fault.SILENT if entry.after else Fault.LOST, entry)
    elif left:
        result.found[Fault.UNCOUNTED] = result.found.get(Fault.UNCOUNTED, []) + must
    elif not (count.at_least or count.may_repeat) and count.number > len(must) + count.again + may_count:
        result.found.setdefault(Fault.COUNTED_TOO_MUCH, []).extend(must or [Facts((stream, ""))])


def _judge_order(entries: list[Facts], result: Judgement) -> None:
    highest: dict[object, tuple[int, int]] = {}
    rows = [(row, entry) for entry in entries for row in entry.rows]
    for row, of in sorted(rows, key=lambda pair: order(pair[0])):
        stream, at = row.place[0], id_key(row.place[1])
        rising: dict[object, tuple[int, int]] = {stream: at}  # what later rows must not be below
        if row.lane is not None:
            rising = {("lane", row.lane, stream, row.batch): at, ("batches", row.lane[0], stream): (row.batch, 0)}
        if any(position < highest.get(key, position) for key, position in rising.items()):
            result.note(Fault.REORDERED, of, of.may_reorder)
        for key, position in rising.items() if not of.may_reorder else ():
            highest[key] = max(position, highest.get(key, position))


class FactsByPlace(dict[Place, Facts]):
    """The facts of entries by their place. Those of another place are made when they are asked for."""

    def __init__(self, added: Iterable[Added], rows: Iterable[Row]) -> None:
        """Take what producers have sent, and what has arrived. An entry without a row whose ID its producer does not
        know is left out: nothing is wrong with it."""
        super().__init__()
        sent = {entry.value: entry for entry in added}
        for entry in sent.values():
            if entry.place is not None:
                self[entry.place].value, self[entry.place].sent = entry.value, entry.outcome
        for row in sorted(rows, key=order):
            found, known = self[row.place], sent.get(row.value)
            (found.rows if row.kept else found.tried).append(row)
            if row.kept and found.value is None:
                found.value = row.value
                found.sent = known.outcome if known is not None and known.place is None else None

    def __missing__(self, place: Place) -> Facts:
        self[place] = Facts(place)
        return self[place]
