"""What a scene has written down of one query, and its judgement."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_streams.operations.verify.history import Added, Place, Row, order
from spark_streams.operations.verify.judge import FactsByPlace, Judgement, judge

_REMOVED, _UNORDERED = frozenset({"removed by the test"}), frozenset({"it correctly reached the query out of order"})


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
        return sorted((row for row in self.rows if row.kept), key=order)


def check_history(history: History) -> Judgement:
    """Compare the rows in the sink with the entries that were sent."""
    facts = FactsByPlace(history.added, history.rows)
    acknowledged: dict[Place, list[int]] = {}
    for ack in history.acknowledged:
        acknowledged.setdefault(ack.place, []).append(ack.committed)
    for place in history.dead_letters:
        facts[place].letters += 1
    for place in history.pending:
        facts[place].is_pending = True
    for place in [*facts, *acknowledged]:
        entry = facts[place]
        entry.acknowledged = acknowledged.get(place, []) if history.acks_seen else None
        entry.is_bad = place in history.bad
        entry.may_miss = _REMOVED if place in history.removed else frozenset()
        entry.may_reorder = _UNORDERED if place in history.unordered else frozenset()
    return judge(facts.values())
