"""Margin of one group: seconds, "unlimited" or "unknown", each with its reason. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_streams.base.units import duration, size
from spark_streams.connector.lag.points import GroupPoint, MemoryPoint, StreamPoint
from spark_streams.connector.lag.rule import AGE, GROUPS, LENGTH, Rule

_FAR = 0.5  # of a stream's entries are before a group that stays far from what is trimmed
MEMORY, NONE, UNKNOWN = "memory", "none", "unknown"


@dataclass(frozen=True)
class Margin:
    """seconds: until trimming reaches the group, infinite: never at these rates, None: not known; rule: what removes
    entries then (`length`, `age`, `bytes`, `groups`, `memory`), `none` or `unknown`; why: what was
    seen, or why it is not known."""

    seconds: float | None
    rule: str
    why: str

    def __str__(self) -> str:
        if self.seconds is None:
            return "?"
        return "unlimited" if math.isinf(self.seconds) else duration(self.seconds * 1000)

    def as_json(self) -> dict[str, object]:
        """Return it for JSON, which has no infinite number."""
        answer = "unknown" if self.seconds is None else "unlimited" if math.isinf(self.seconds) else "limited"
        seconds = round(self.seconds, 3) if self.seconds is not None and answer == "limited" else None
        return {"answer": answer, "seconds": seconds, "rule": self.rule, "reason": self.why}


def trimming_margin(rule: Rule, points: Sequence[StreamPoint], group: Sequence[GroupPoint | None]) -> Margin:
    """Return the time until trimming by this rule reaches the group. group: its point at each moment of the stream."""
    known = [(point.at_ms, one) for point, one in zip(points, group, strict=True) if one is not None]
    (began_ms, before), (_, now), last = known[0], known[-1], points[-1]
    if not now.waits:
        return Margin(math.inf, rule.kind or NONE, "the group has acknowledged all entries")
    if rule.kind == GROUPS:
        return Margin(math.inf, GROUPS, rule.why)
    if not rule.kind:
        return Margin(None, UNKNOWN, rule.why)
    span = last.at_ms - began_ms
    if now.needed is None or before.needed is None:
        return Margin(None, UNKNOWN, "it is not known which entries the group has not acknowledged")
    if span <= 0:
        return Margin(None, UNKNOWN, "the group was not there before")
    if now.needed <= last.removed:
        return Margin(0.0, rule.kind, f"trimming has reached the group: {rule.why}")
    read, distance = (now.needed - before.needed) / span, now.needed - last.removed
    if rule.kind == AGE and now.lag_ms is not None and before.lag_ms is not None:
        milliseconds = _until(rule.limit - now.lag_ms, 1.0, 1.0 - (now.lag_ms - before.lag_ms) / span)
    elif rule.kind == LENGTH:  # as many entries are removed as are added
        milliseconds = _until(now.needed - (last.added - rule.limit), rule.added, read)
    else:
        milliseconds = _until(distance, rule.removed, read)
    distances = [
        one.needed - point.removed
        for point, one in zip(points, group, strict=True)
        if one is not None and one.needed is not None and point.removed > points[0].removed
    ]
    closest = min([distance, *distances])
    if math.isinf(milliseconds) and closest < _FAR * last.length:
        # A group that loses entries moves on with the removal, so its place is no sign that it reads.
        why = f"the removal has come close to the group: {rule.why}"
        return Margin(max(closest, 0.0) / max(rule.removed, rule.added) / 1000, rule.kind, why)
    if math.isinf(milliseconds):
        return Margin(math.inf, rule.kind, f"the group reads as fast as the stream is trimmed: {rule.why}")
    return Margin(milliseconds / 1000, rule.kind, rule.why)


def _until(distance: float, trimmed: float, read: float) -> float:
    """Return the milliseconds until trimming has covered a distance to the group, which moves on meanwhile."""
    return max(distance, 0.0) / (trimmed - read) if trimmed > read else math.inf


def memory_margin(points: Sequence[MemoryPoint]) -> Margin:
    """Return the time until a server is full and evicts streams. Only a policy `allkeys-…` evicts them."""
    first, last = points[0], points[-1]
    if last.limit == 0:
        return Margin(math.inf, NONE, "no maxmemory")
    growth = (last.used - first.used) / max(1, last.at_ms - first.at_ms)
    full = f"{size(last.used)} of {size(last.limit)} used"
    until = (max(0, last.limit - last.used) / growth) if growth > 0 else math.inf
    if not math.isinf(until):
        full = f"{full}, full in {duration(until)}"
    if not last.policy.startswith("allkeys"):
        return Margin(math.inf, NONE, f"{full}; a full server then refuses entries ({last.policy})")
    if last.used >= last.limit:
        until = 0.0
    elif len(points) == 1:
        return Margin(None, UNKNOWN, f"{full}; one look shows no rate")
    return Margin(until / 1000, MEMORY, f"{full}; a full server then evicts streams ({last.policy})")


def least(trimming: Margin, memories: Sequence[Margin]) -> Margin:
    """Return the margin that ends first. If none is known to end, one that is not known comes before "unlimited"."""
    ordered = sorted([trimming, *memories], key=order)
    others = [one.why for one in ordered[1:] if one in memories]
    return replace(ordered[0], why="; ".join([ordered[0].why, *(f"memory: {why}" for why in others[:1])]))


def order(margin: Margin) -> tuple[int, float]:
    """Return the sort key: those that end, the first one first; then those that are not known; then unlimited ones."""
    if margin.seconds is None:
        return 1, 0.0
    return (2 if math.isinf(margin.seconds) else 0), margin.seconds
