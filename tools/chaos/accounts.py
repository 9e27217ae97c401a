"""The account of a run in which somebody took entries away, moved a group, or put an older file back. Pure.

Every entry is in the sink once, or its loss was said: by a named error, and by the number that the progress tells.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tools.chaos.history import Outcome as Sent
from tools.chaos.history import Place
from tools.chaos.scene import Outcome


@dataclass
class Done:
    """What somebody did. gone: entries that the query may not get to see for it; either, taken, unordered: as in
    History; foreign: consumers of the group that are not the query's; harmless: whether the query must not stop;
    uncounted, overcounted: by how much the number that the progress tells may be below and above what is missing."""

    gone: set[Place] = field(default_factory=set)
    either: set[Place] = field(default_factory=set)
    taken: set[Place] = field(default_factory=set)
    unordered: set[Place] = field(default_factory=set)
    foreign: tuple[str, ...] = ()
    harmless: bool = False
    uncounted: int = 0
    overcounted: int = 0


@dataclass
class Aftermath:
    """errors: that ended runs of the query, in turn; counted: entries that its last runs have said are lost; restarted:
    whether a batch may have been written in part before; given_up: what a restart may pass over (at-most-once); ended:
    whether it came to the end of what is there."""

    errors: list[str] = field(default_factory=list)
    counted: int = 0
    restarted: bool = False
    given_up: set[Place] = field(default_factory=set)
    ended: bool = False


def settle(outcome: Outcome, strict: bool, after: Aftermath, done: Done, before: Collection[Place] = ()) -> None:
    """Note what is wrong. strict: whether the query began with failOnDataLoss; before: entries that it was never to
    read. The outcome's history knows `gone`, `either` and `taken`."""
    history, report = outcome.history, outcome.report
    arrived = {row.place for row in history.kept()}
    sent = {one.place for one in history.added if one.outcome is Sent.OK and one.place is not None}
    missing = sent - arrived - history.either - history.taken - set(before) - set(history.letters)
    if strict and not after.errors:
        silent = missing & done.gone
        report.lost += [one.value for one in history.added if one.place in silent]
    else:
        lost = len(missing & done.gone)
        # What an earlier run had written before it went is not missing, and yet could not be read again; what others
        # have in hand may count for the query as lost.
        over = max(done.overcounted, len(done.gone) - lost if after.restarted else 0) + len(done.either)
        if not lost - done.uncounted <= after.counted <= lost + over:
            outcome.wrong.append(f"lost, says the progress: {after.counted}, not {lost}")
    if arrived & set(before):
        outcome.wrong.append(f"read what it was not to read: {sorted(arrived & set(before))[:5]}")
    for error in after.errors:
        if not error.startswith("[RSTREAM_"):
            outcome.wrong.append(f"ended with {error[:300]!r}, which is no named error")
        elif done.harmless:
            outcome.wrong.append(f"ended though nothing is wrong: {error[:300]}")
    if not after.ended:
        report.forgive("lost", "pending")  # nobody has read on
        outcome.wrong.append(f"does not come to an end: {after.errors[-1][:300]}")
