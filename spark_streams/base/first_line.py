"""The first line of a file that holds a password or a key."""

from __future__ import annotations

from pathlib import Path

LONGEST = 16 << 10  # bytes; tokens of cloud providers have some thousands


def first_line(file: str | Path) -> bytes:
    """Return the first line without its end, and read no more than that; empty if the file is. Raises OSError, and
    ValueError if the line is too long."""
    with open(file, "rb") as opened:
        line = opened.readline(LONGEST + 1)
    if len(line) > LONGEST:
        raise ValueError(f"its first line has more than {LONGEST:,} bytes")
    return line.splitlines()[0] if line else b""
