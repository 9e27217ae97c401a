"""Margin of a group: the time until trimming, or a server that evicts, removes an entry that the group still needs.

Nothing on a server records by which rule a stream is trimmed: any client may trim it. So the rule is what is observed,
and an answer that cannot be observed is "unknown", with its reason. All is pure: points (a stream, a group and a
server's memory at one moment, as numbers), the rule that they show, the margin of a group, and the points of the last
minutes.

entries ever added   |······ removed ······|████ not needed ████|░░░░░░ needed ░░░░░░|
                     0                  removed               needed               added
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from spark_streams.base.ids import StreamId, age_ms
from spark_streams.base.units import duration, size
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.lag.survey import GroupLag, StreamSummary, Survey
from spark_streams.connector.wire.connection import ReplyError, Server
from spark_streams.connector.wire.named_errors import ASK, Memory


@dataclass(frozen=True)
class StreamPoint:
    at_ms: int
    length: int  # entries now
    added: int  # entries ever added
    first_age_ms: int | None  # age of the oldest entry; None: its ID is not a time
    bytes: int | None = None  # memory of the stream; None: not known
    first: StreamId | None = None  # the oldest entry; None: there is none

    @property
    def removed(self) -> int:
        """Entries that have left the stream."""
        return self.added - self.length

    @classmethod
    def of(cls, stream: StreamSummary, at_ms: int, size: int | None) -> StreamPoint | None:
        """Return the point of a stream; None before Redis 7, which does not count entries that were added."""
        if stream.added is None:
            return None
        first = StreamId.parse(stream.first) if stream.first else None
        age = None if first is None else age_ms(first, at_ms)
        return cls(at_ms, stream.length, stream.added, age, size, first)


@dataclass(frozen=True)
class GroupPoint:
    # Number of the first entry that the group has not acknowledged, counted as `added` counts; None: not known. A
    # number below the stream's `removed`: it was trimmed unread.
    needed: float | None
    lag_ms: int | None  # age of this entry; None: its ID is not a time
    waits: bool  # whether there is such an entry
    is_exact: bool = False  # the number is known, and not estimated

    @classmethod
    def of(cls, group: GroupLag, stream: StreamPoint) -> GroupPoint:
        """Return the point of a group of this stream."""
        waits = group.lag > 0 or group.pending > 0
        position = StreamId.parse(group.last_delivered)
        oldest = None if group.oldest_pending is None else StreamId.parse(group.oldest_pending)
        if oldest is not None and oldest <= position:
            if stream.first is not None and oldest > stream.first:
                return cls(None if group.at_least else _estimate(group, stream, position), group.lag_ms, waits)
            is_first = oldest == stream.first
            return cls(stream.removed if is_first else stream.removed - 1, group.lag_ms, waits, True)
        if stream.first is not None and position >= stream.first:
            # Entries that were added after the stream's snapshot are in the lag, but the first entry is not needed.
            needed = None if group.at_least else max(stream.added - group.lag, stream.removed + 1)
            return cls(needed, group.lag_ms, waits, needed is not None)
        # All that the stream has is undelivered. Only the group's own count tells whether more was.
        is_exact = group.delivered is not None
        return cls(
            min(group.delivered or 0, stream.removed) if is_exact else stream.removed, group.lag_ms, waits, is_exact
        )


def _estimate(group: GroupLag, stream: StreamPoint, position: StreamId) -> float | None:
    """Return where the oldest pending entry is, by the times of the IDs."""
    undelivered = stream.added - group.lag
    position_age = age_ms(position, stream.at_ms)
    if stream.first_age_ms is None or group.lag_ms is None or position_age is None:
        return None
    span = stream.first_age_ms - position_age
    part = (stream.first_age_ms - group.lag_ms) / span if span > 0 else 0.0
    estimate = stream.removed + min(max(part, 0.0), 1.0) * (undelivered - stream.removed)
    return max(stream.removed, min(estimate, undelivered - group.pending))


MemoryPoint = tuple[int, Memory]  # time, memory of a server


# -- the rule by which a stream is trimmed, as its points of the last minutes show it ----------------------------------

#     length   the length stays, while entries are added and removed
#     age      the age of the oldest entry stays
#     bytes    the memory stays, and the length does not
#     groups   the removal never passes the slowest group, and stops exactly there (onCommit)
#
# `~` removes whole nodes: a length and an age stay within two of them. If several stay, such as length and age at a
# constant rate, the one that varies least is the rule. The groups come first: a backlog that stays is a length that
# stays.
#
# The groups are the rule only if that is proved: they have no margin. A group that reads without loss beside a small
# length is no proof: the removal then stops somewhere else.

LENGTH, AGE, BYTES, GROUPS = "length", "age", "bytes", "groups"
NODE = 100  # entries of a node, by default
_STEADY = 0.05  # of its mean: what a value that stays may vary by
_OF_CHANGE = 0.1  # of what it would have changed by without trimming
_FEWEST = 4  # moments that show a rule: fewer agree by chance
_LESS = 3  # times as steady: another value is the rule instead of the length
_CLEAR = 5  # times the nodes that it varies by: a smaller value must stay within a node
_STOPS = 2  # of so many snapshots of a removal, one at least saw it stop exactly at the slowest group


@dataclass(frozen=True)
class Rule:
    kind: str  # empty if none is known
    why: str  # what was seen, or why no rule is known
    added: float = 0.0  # entries per ms
    removed: float = 0.0  # entries per ms
    limit: float = 0.0  # the length, the age in ms or the bytes that stay


@dataclass(frozen=True)
class _Steady:
    mean: float
    spread: float  # by which the value varies, as a part of the mean


def rule_of(points: Sequence[StreamPoint], groups: Sequence[Sequence[GroupPoint | None]]) -> Rule:
    """Return the rule of a stream. groups: of each group, its point at each of the moments, None: there was none."""
    if len(points) < 2:
        return Rule("", "one snapshot shows no rate")
    # Entries are removed after this moment: before, the stream has not reached its limit.
    full = [number for number, point in enumerate(points) if point.removed == points[0].removed]
    began = full[-1] if points[-1].removed > points[0].removed else 0
    points, groups = points[began:], [group[began:] for group in groups]
    first, last = points[0], points[-1]
    span = last.at_ms - first.at_ms
    added, removed, seen = last.added - first.added, last.removed - first.removed, f"in the last {duration(span)}"
    if removed <= 0:
        if added == 0:
            return Rule("", f"nothing was added or trimmed {seen}")
        return Rule("", f"nothing was trimmed {seen}; a limit that the stream has not reached does not show")
    if len(points) < _FEWEST:
        return Rule("", f"entries were trimmed {seen}; {_FEWEST} snapshots are needed to see by which rule")
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
    if kind == LENGTH:  # of two digits: a line that is printed again and again stays the same
        whole = round(mean)
        return f"a length of about {round(whole, 2 - len(str(whole))):,} entries"
    return f"an age of about {duration(mean)}" if kind == AGE else f"about {size(round(mean))} of memory"


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
    stops = snapshots = 0
    for number, point in enumerate(points):
        known = [one for group in groups if (one := group[number]) is not None]
        if not known or any(one.needed is None or one.needed < point.removed for one in known):
            return False
        if number and point.removed > points[number - 1].removed:
            snapshots += 1
            stops += any(one.is_exact and one.needed == point.removed for one in known)
    return stops >= _FEWEST - 1 and stops * _STOPS >= snapshots


# -- the margin of one group -------------------------------------------------------------------------------------------

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
    (began_ms, first), (now_ms, last) = points[0], points[-1]
    if last.limit == 0:
        return Margin(math.inf, NONE, "no maxmemory")
    growth = (last.used - first.used) / max(1, now_ms - began_ms)
    full = f"{size(last.used)} of {size(last.limit)} used"
    until = (max(0, last.limit - last.used) / growth) if growth > 0 else math.inf
    if not math.isinf(until):
        full = f"{full}, full in {duration(until)}"
    if not last.policy.startswith("allkeys"):
        return Margin(math.inf, NONE, f"{full}; a full server then refuses entries ({last.policy})")
    if last.used >= last.limit:
        until = 0.0
    elif len(points) == 1:
        return Margin(None, UNKNOWN, f"{full}; one snapshot shows no rate")
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


# -- memory of each server of an address (INFO memory) -----------------------------------------------------------------


@dataclass(frozen=True)
class NodeMemory(Memory):
    node: str = ""  # host:port


def node_memories(server: Server, refused: Callable[[RStreamError], object]) -> list[NodeMemory]:
    """Return the memory of each server. refused: receives the error if the user may not ask."""
    memories = []
    for node in server.nodes():
        [reply] = node.pipeline([ASK])
        if isinstance(reply, ReplyError):
            refused(node.error_of(reply, ASK))
            continue
        memory = Memory.read(reply)
        if memory.used:
            nodes = node.node_address.nodes
            name = f"{nodes[0][0]}:{nodes[0][1]}" if nodes else str(node.node_address)
            memories.append(NodeMemory(memory.used, memory.limit, memory.policy, name))
    return memories


# -- the points of the last minutes, from which the margin of each group follows ---------------------------------------

WINDOW_MS = 300_000  # over which rates are taken
_APART_MS = 5_000  # between two points, at least

_NO_SIZES: Mapping[str, int] = MappingProxyType({})
Key = tuple[str, str]  # stream, group
_Moment = tuple[StreamPoint, Mapping[str, GroupPoint]]  # a stream and its groups
Point = TypeVar("Point", MemoryPoint, _Moment)


class MarginWindow:
    """Collects surveys, and answers for the groups of the last one. Not thread-safe. apart_ms: least time between two
    points that are kept."""

    def __init__(self, apart_ms: int = _APART_MS) -> None:
        self._apart_ms = apart_ms
        self._streams: dict[str, deque[_Moment]] = {}
        self._nodes: dict[str, deque[MemoryPoint]] = {}

    def add(self, seen: Survey, sizes: Mapping[str, int] = _NO_SIZES) -> None:
        """Add a survey of some streams. sizes: bytes of streams, as far as they are known."""
        groups: dict[str, dict[str, GroupPoint]] = {}
        points = {
            stream.stream: point
            for stream in seen.streams
            if (point := StreamPoint.of(stream, seen.at_ms, sizes.get(stream.stream))) is not None
        }
        for group in seen.groups:
            if group.stream in points:
                groups.setdefault(group.stream, {})[group.group] = GroupPoint.of(group, points[group.stream])
        for name, point in points.items():
            moments = self._streams.setdefault(name, deque())
            if moments and (point.added < moments[-1][0].added or point.removed < moments[-1][0].removed):
                moments.clear()  # the stream was created again
            _append(moments, (point, groups.get(name, {})), lambda moment: moment[0].at_ms, self._apart_ms)

    def add_memory(self, nodes: Iterable[NodeMemory], at_ms: int) -> None:
        """Add the memory of all servers."""
        for node in nodes:
            _append(self._nodes.setdefault(node.node, deque()), (at_ms, node), lambda point: point[0], self._apart_ms)

    def keep(self, streams: Iterable[str]) -> None:
        """Forget all streams but these."""
        for gone in self._streams.keys() - set(streams):
            del self._streams[gone]

    def margins(self, keys: Iterable[Key]) -> dict[Key, Margin]:
        by_stream: dict[str, list[str]] = {}
        for stream, group in keys:
            by_stream.setdefault(stream, []).append(group)
        memories = [memory_margin(points) for points in self._nodes.values()]
        return {
            (stream, group): least(margin, memories)
            for stream, groups in by_stream.items()
            for group, margin in self._of_stream(stream, groups)
        }

    def _of_stream(self, stream: str, groups: Iterable[str]) -> Iterable[tuple[str, Margin]]:
        moments = self._streams.get(stream)
        if not moments:
            why = "the server does not count entries that were added (Redis before 7.0)"
            return [(group, Margin(None, UNKNOWN, why)) for group in groups]
        points = [point for point, _ in moments]
        series = {group: [of_groups.get(group) for _, of_groups in moments] for group in moments[-1][1]}
        rule = rule_of(points, list(series.values()))
        return [(group, trimming_margin(rule, points, series[group])) for group in groups if group in series]


def _append(points: deque[Point], point: Point, at_ms: Callable[[Point], int], apart_ms: int) -> None:
    """Append a point, and remove what the window does not need: points close to each other, and old ones."""
    if len(points) > 1 and at_ms(points[-1]) - at_ms(points[-2]) < apart_ms:
        points.pop()
    points.append(point)
    while len(points) > 2 and at_ms(points[1]) <= at_ms(point) - WINDOW_MS:
        points.popleft()
