"""Fit names into narrow columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_LEAST = 6  # columns of the screen


def shorten(name: str, width: int) -> str:
    """Return a long name without its middle: names with the same beginning differ at their end."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: max(0, width - 1 - tail)]}…{name[len(name) - tail :] if tail else ''}"


def widths(names: Sequence[Sequence[str]], heads: Sequence[str], total_width: int) -> list[int]:
    """Return the width of each column of names, so that all fit: full width for narrow columns, equal parts for wide
    ones. names: row by row; total_width: of all columns."""
    full_widths = [max(map(len, column)) for column in zip(heads, *names, strict=True)]
    name_widths = [0] * len(full_widths)
    for done, column in enumerate(sorted(range(len(full_widths)), key=lambda column: full_widths[column])):
        name_widths[column] = max(
            _LEAST, min(full_widths[column], (total_width - sum(name_widths)) // (len(full_widths) - done))
        )
    return name_widths
