"""The rule by which a stream is trimmed, as its points of the last minutes show it. Pure.

    length   the length stays, while entries are added and removed
    age      the age of the oldest entry stays
    bytes    the memory stays, and the length does not
    groups   entries are removed close behind the slowest group (trim=acked, onCommit)

`~` removes whole nodes: a length and an age stay within two of them. If several stay, such as length and age at a
constant rate, the one that varies least is the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.monitor.margin.points import GroupPoint, StreamPoint
from spark_streams.monitor.terminal.units import duration, size

LENGTH, AGE, BYTES, GROUPS = "length", "age", "bytes", "groups"
NODE = 100  # entries of a node, by default
_STEADY = 0.05  # of its mean: what a value that stays may vary by
_OF_CHANGE = 0.1  # of what it would have changed by without trimming
_FEWEST = 4  # moments that show a rule: fewer agree by chance
_LESS = 3  # times as steady: another value is the rule instead of the length
_CLEAR = 5  # times the nodes that it varies by: a smaller value says nothing


@dataclass(frozen=True)
class Rule:
    """kind: the rule, empty if none is known; why: what was seen, or why no rule is known; added, removed: entries per
    ms; limit: the length, the age in ms or the bytes that stay; still: nothing was added and nothing removed."""

    kind: str
    why: str
    added: float = 0.0
    removed: float = 0.0
    limit: float = 0.0
    still: bool = False


@dataclass(frozen=True)
class _Steady:
    """A value that stays. spread: by which it varies, as a part of the mean."""

    mean: float
    spread: float


def rule_of(points: Sequence[StreamPoint], groups: Sequence[Sequence[GroupPoint | None]]) -> Rule:
    """Return the rule of a stream. groups: of each group, its point at each of the moments, None: there was none."""
    if len(points) < 2:
        return Rule("", "one look shows no rate")
    began = _began(points) if points[-1].removed > points[0].removed else 0
    points, groups = points[began:], [group[began:] for group in groups]
    first, last = points[0], points[-1]
    span = last.at_ms - first.at_ms
    added, removed, seen = last.added - first.added, last.removed - first.removed, f"in the last {duration(span)}"
    if removed <= 0:
        if added == 0:
            return Rule("", f"nothing was added or trimmed {seen}", still=True)
        return Rule("", f"nothing was trimmed {seen}; a limit that the stream has not reached does not show")
    if len(points) < _FEWEST:
        return Rule("", f"entries were trimmed {seen}; {_FEWEST} looks are needed to see by which rule")
    nodes_ms = 2 * NODE * span / added if added > 0 else float(span)
    by_entry = sum(point.bytes or 0 for point in points) / max(1, sum(point.length for point in points))
    found = {
        LENGTH: _steady([point.length for point in points], added, 2 * NODE),
        AGE: _steady([point.first_age_ms for point in points], span, nodes_ms),
        BYTES: _steady([point.bytes for point in points], added * by_entry, 2 * NODE * by_entry),
    }
    steady = {kind: value for kind, value in found.items() if value is not None}
    speeds = added / span, removed / span
    if not steady:
        if _follows(points, groups, removed):
            return Rule(GROUPS, f"only entries that every group has acknowledged were trimmed {seen}", *speeds)
        return Rule("", f"entries were trimmed {seen}, by no length, age, memory or group that shows")
    # The order above, unless another one varies much less. At a constant rate all are the same.
    kind = min(steady, key=lambda kind: steady[kind].spread * (1 if kind == next(iter(steady)) else _LESS))
    return Rule(kind, f"{_said(kind, steady[kind].mean)} {seen}", *speeds, steady[kind].mean)


def _said(kind: str, mean: float) -> str:
    if kind == LENGTH:
        return f"a length of about {_rounded(mean):,} entries"
    return f"an age of about {duration(mean)}" if kind == AGE else f"about {size(round(mean))} of memory"


def _began(points: Sequence[StreamPoint]) -> int:
    """Return the number of the moment after which entries are removed: before, the stream has not reached its limit."""
    return max(number for number, point in enumerate(points) if point.removed == points[0].removed)


def _steady(values: Sequence[int | None], change: float, nodes: float) -> _Steady | None:
    """Return a value that stays, None if it does not, or is not known. change: by which it would have changed without
    trimming; nodes: by which removing whole nodes changes it."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    mean, spread = sum(known) / len(known), max(known) - min(known)
    if mean < _CLEAR * nodes or spread > min(max(_STEADY * mean, nodes), _OF_CHANGE * change):
        return None
    return _Steady(mean, spread / mean)


def _follows(points: Sequence[StreamPoint], groups: Sequence[Sequence[GroupPoint | None]], removed: int) -> bool:
    """Whether trimming stays close behind the slowest group. A group that stands still comes closer by all that is
    removed, so that it is never taken for this."""
    for number, point in enumerate(points):
        of_groups = [group[number] for group in groups]
        needed = [one.needed for one in of_groups if one is not None and one.needed is not None]
        if len(needed) < len([one for one in of_groups if one is not None]) or not needed:
            return False
        if not 0 <= min(needed) - point.removed <= max(removed / 2, 0):
            return False
    return True


def _rounded(value: float) -> int:
    """Return a number with two digits: a line that is printed again and again stays the same."""
    whole = round(value)
    return int(round(whole, 2 - len(str(whole))))
