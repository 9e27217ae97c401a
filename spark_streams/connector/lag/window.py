"""The points of the last minutes, from which the margin of each group follows. No clock: surveys have their time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from spark_streams.connector.lag.margin import UNKNOWN, Margin, least, memory_margin, trimming_margin
from spark_streams.connector.lag.node_memory import NodeMemory
from spark_streams.connector.lag.points import GroupPoint, MemoryPoint, StreamPoint
from spark_streams.connector.lag.rule import rule_of
from spark_streams.connector.lag.survey import Survey

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
            point = MemoryPoint(at_ms, node.used, node.limit, node.policy)
            _append(self._nodes.setdefault(node.node, deque()), point, lambda point: point.at_ms, self._apart_ms)

    def keep(self, streams: Iterable[str]) -> None:
        """Forget all streams but these."""
        for gone in self._streams.keys() - set(streams):
            del self._streams[gone]

    def margins(self, keys: Iterable[Key]) -> dict[Key, Margin]:
        """Return the margin of each of these groups."""
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
