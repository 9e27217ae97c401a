"""Account of a run in which another client removed entries, moved a group, or restored an older file. Pure.

Every entry is in the sink once, or its loss is reported: by a named error, and by the count in the progress.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tools.chaos.history import Outcome as Sent
from tools.chaos.history import Place
from tools.chaos.scene import Outcome


@dataclass
class Intervention:
    """What another client or an operator did.

    removed: entries that the query may miss because of it; either, taken, unordered: as in History; foreign: consumers
    of the group that are not the query's; harmless: whether the query must not stop; uncounted, overcounted: how far
    the count in the progress may be below and above the number of missing entries.
    """

    removed: set[Place] = field(default_factory=set)
    either: set[Place] = field(default_factory=set)
    taken: set[Place] = field(default_factory=set)
    unordered: set[Place] = field(default_factory=set)
    foreign: tuple[str, ...] = ()
    harmless: bool = False
    uncounted: int = 0
    overcounted: int = 0


@dataclass
class Aftermath:
    """Runs of the query after the intervention.

    errors: that ended runs, in their order; counted: entries that the last runs reported as lost; restarted: whether a
    batch may have been written in part before; ended: whether the query read all entries.
    """

    errors: list[str] = field(default_factory=list)
    counted: int = 0
    restarted: bool = False
    ended: bool = False


def settle(
    outcome: Outcome, strict: bool, after: Aftermath, intervention: Intervention, before: Collection[Place] = ()
) -> None:
    """Add what is wrong to the outcome, whose history holds `removed`, `either` and `taken`.

    strict: whether the query started with failOnDataLoss; before: entries that the query must not read.
    """
    history, report = outcome.history, outcome.report
    arrived = {row.place for row in history.kept()}
    sent = {entry.place for entry in history.added if entry.outcome is Sent.OK and entry.place is not None}
    missing = sent - arrived - history.either - history.taken - set(before) - set(history.dead_letters)
    if strict and not after.errors:
        silent = missing & intervention.removed
        report.lost += [entry.value for entry in history.added if entry.place in silent]
    else:
        lost = len(missing & intervention.removed)
        # An entry that an earlier run wrote and that was removed then is not missing, but a replay counts it as lost.
        # So does an entry that is pending for another consumer.
        excess = max(intervention.overcounted, len(intervention.removed) - lost if after.restarted else 0) + len(
            intervention.either
        )
        if not lost - intervention.uncounted <= after.counted <= lost + excess:
            outcome.wrong.append(f"lost entries in the progress: {after.counted}, expected {lost}")
    if arrived & set(before):
        outcome.wrong.append(f"read entries that it must not read: {sorted(arrived & set(before))[:5]}")
    for error in after.errors:
        if not error.startswith("[RSTREAM_"):
            outcome.wrong.append(f"ended with {error[:300]!r}, which is not a named error")
        elif intervention.harmless:
            outcome.wrong.append(f"ended although nothing is wrong: {error[:300]}")
    if not after.ended:
        report.forgive("lost", "pending")  # no run read further
        outcome.wrong.append(f"did not read all entries: {after.errors[-1][:300]}")
