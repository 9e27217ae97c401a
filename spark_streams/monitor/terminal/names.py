"""Names in columns that are too narrow for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_LEAST = 6  # columns of the screen


def shorten(name: str, width: int) -> str:
    """Both ends of a long name: where names begin alike, their ends tell them apart."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: max(0, width - 1 - tail)]}…{name[len(name) - tail :] if tail else ''}"


def widths(names: Sequence[Sequence[str]], heads: Sequence[str], room: int) -> list[int]:
    """How wide each column of names may be, so that all together fit: narrow ones as they are, wide ones in equal
    parts. names: row by row."""
    wanted = [max(map(len, column)) for column in zip(heads, *names, strict=True)]
    given = [0] * len(wanted)
    for done, at in enumerate(sorted(range(len(wanted)), key=lambda at: wanted[at])):
        given[at] = max(_LEAST, min(wanted[at], (room - sum(given)) // (len(wanted) - done)))
    return given
