"""Values over time that stay small however long one looks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Point = tuple[int, float | None]  # milliseconds since the epoch, value; None: not known then

_KEPT = 600  # points of a line


class Series:
    """Lines by name. Of a line that has grown long, each stretch keeps its lowest and its highest point."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Point]] = {}

    def add(self, name: str, at: int, value: float | None) -> None:
        """One more point, at or after the line's last one."""
        points = self._lines.setdefault(name, [])
        points.append((at, value))
        if len(points) > 2 * _KEPT:
            points[:] = thinned(points, _KEPT)

    def gap(self, at: int, but: set[str]) -> None:
        """Every line but these breaks off here."""
        for name, points in self._lines.items():
            if name not in but and points[-1][1] is not None:
                points.append((at, None))

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __getitem__(self, name: str) -> list[Point]:
        """The points of a line in order of time; none where there is no such line."""
        return sorted(self._lines.get(name, ()), key=lambda point: point[0])


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most about `most` points: each bucket's lowest and highest, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most // 2))
    found: list[Point] = []
    for at in range(0, len(points), size):
        bucket = points[at : at + size]
        known = [(value, when) for when, value in bucket if value is not None]
        if not known:
            found.append((bucket[0][0], None))
            continue
        found += [(when, value) for when, value in sorted({(w, v) for v, w in (min(known), max(known))})]
    return found
