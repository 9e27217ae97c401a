"""Values over time in bounded memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Point = tuple[int, float | None]  # milliseconds since the epoch, value; None: not known at that time

_MAX_POINTS = 600  # points of a line


class Series:
    """Lines by name. A long line is thinned: each of its stretches keeps its lowest and its highest point."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Point]] = {}

    def add(self, name: str, at_ms: int, value: float | None) -> None:
        """Add a point, not before the line's last one."""
        points = self._lines.setdefault(name, [])
        points.append((at_ms, value))
        if len(points) > 2 * _MAX_POINTS:
            points[:] = thinned(points, _MAX_POINTS)

    def gap(self, at_ms: int, unbroken: set[str]) -> None:
        """Add a gap to every line except those named in `unbroken`."""
        for name, points in self._lines.items():
            if name not in unbroken and points[-1][1] is not None:
                points.append((at_ms, None))

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __getitem__(self, name: str) -> list[Point]:
        """The points of a line in order of time; empty if there is no such line."""
        return sorted(self._lines.get(name, ()), key=lambda point: point[0])


def thinned(points: Sequence[Point], max_points: int) -> list[Point]:
    """Return about `max_points` points: the lowest and the highest of each bucket, so that no peak is lost."""
    if len(points) <= max_points:
        return list(points)
    size = math.ceil(len(points) / (max_points // 2))
    thinned_points: list[Point] = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        values = [(value, when) for when, value in bucket if value is not None]
        if not values:
            thinned_points.append((bucket[0][0], None))
            continue
        thinned_points += [(when, value) for when, value in sorted({(w, v) for v, w in (min(values), max(values))})]
    return thinned_points
