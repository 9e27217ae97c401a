"""The rule by which a stream is trimmed, as its points of the last minutes show it. Pure.

    length   the length stays, while entries are added and removed
    age      the age of the oldest entry stays
    bytes    the memory stays, and the length does not
    groups   the removal never passes the slowest group, and stops exactly there (onCommit)

`~` removes whole nodes: a length and an age stay within two of them. If several stay, such as length and age at a
constant rate, the one that varies least is the rule. The groups come first: a backlog that stays is a length that
stays.

The groups are the rule only if that is proved: they have no margin. A group that reads without loss beside a small
length is no proof: the removal then stops somewhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.base.units import duration, size
from spark_streams.connector.lag.points import GroupPoint, StreamPoint

LENGTH, AGE, BYTES, GROUPS = "length", "age", "bytes", "groups"
NODE = 100  # entries of a node, by default
_STEADY = 0.05  # of its mean: what a value that stays may vary by
_OF_CHANGE = 0.1  # of what it would have changed by without trimming
_FEWEST = 4  # moments that show a rule: fewer agree by chance
_LESS = 3  # times as steady: another value is the rule instead of the length
_CLEAR = 5  # times the nodes that it varies by: a smaller value must stay within a node
_STOPS = 2  # of so many looks at a removal, one at least saw it stop exactly at the slowest group


@dataclass(frozen=True)
class Rule:
    """kind: the rule, empty if none is known; why: what was seen, or why no rule is known; added, removed: entries per
    ms; limit: the length, the age in ms or the bytes that stay."""

    kind: str
    why: str
    added: float = 0.0
    removed: float = 0.0
    limit: float = 0.0


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
            return Rule("", f"nothing was added or trimmed {seen}")
        return Rule("", f"nothing was trimmed {seen}; a limit that the stream has not reached does not show")
    if len(points) < _FEWEST:
        return Rule("", f"entries were trimmed {seen}; {_FEWEST} looks are needed to see by which rule")
    speeds = added / span, removed / span
    if _stops_at_groups(points, groups):
        return Rule(GROUPS, f"only entries that every group has acknowledged were trimmed {seen}", *speeds)
    nodes_ms = 2 * NODE * span / added if added > 0 else float(span)
    trimmed = points[1:]  # the first one may be below the limit
    by_entry = sum(point.bytes or 0 for point in trimmed) / max(1, sum(point.length for point in trimmed))
    found = {
        LENGTH: _steady([point.length for point in trimmed], added, 2 * NODE),
        AGE: _steady([point.first_age_ms for point in trimmed], span, nodes_ms),
        BYTES: _steady([point.bytes for point in trimmed], added * by_entry, 2 * NODE * by_entry),
    }
    steady = {kind: value for kind, value in found.items() if value is not None}
    if not steady:
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
    varies = nodes if mean >= _CLEAR * nodes else nodes / 2 if mean >= nodes else 0.0
    if mean <= 0 or spread > min(max(_STEADY * mean, varies), _OF_CHANGE * change):
        return None
    return _Steady(mean, spread / mean)


def _stops_at_groups(points: Sequence[StreamPoint], groups: Sequence[Sequence[GroupPoint | None]]) -> bool:
    """Whether the removal never passed the slowest group, and stopped exactly there."""
    stops = looks = 0
    for number, point in enumerate(points):
        known = [one for group in groups if (one := group[number]) is not None]
        if not known or any(one.needed is None or one.needed < point.removed for one in known):
            return False
        if number and point.removed > points[number - 1].removed:
            looks += 1
            stops += any(one.is_exact and one.needed == point.removed for one in known)
    return stops >= _FEWEST - 1 and stops * _STOPS >= looks


def _rounded(value: float) -> int:
    """Return a number with two digits: a line that is printed again and again stays the same."""
    whole = round(value)
    return int(round(whole, 2 - len(str(whole))))
