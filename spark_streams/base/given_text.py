"""Texts that a user gives: NAME=VALUE, and the first line of a file that holds a password or a key."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"((?:\\[\\=]|\\(?![\\=])|[^\\=])*)=(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\=])")
_MUST_ESCAPE = re.compile(r"=|\\(?=[\\=]|$)")


def parse_assignment(text: str) -> tuple[str, str] | None:
    r"""Return name and value; None if the text has no equals sign that ends a name.

    In the name, `\=` is an equals sign and `\\` a backslash.
    """
    match = _NAME.fullmatch(text)
    return None if match is None else (_ESCAPED.sub(r"\1", match[1]), match[2])


def assignment(name: str, value: str) -> str:
    """Return the text that `parse_assignment` reads as this name and value."""
    escaped = _MUST_ESCAPE.sub(lambda match: "\\" + match[0], name)
    return f"{escaped}={value}"


LONGEST = 16 << 10  # bytes; tokens of cloud providers have some thousands


def first_line(file: str | Path) -> bytes:
    """Return the first line without its end, and read no more than that; empty if the file is. Raises OSError, and
    ValueError if the line is too long."""
    with open(file, "rb") as opened:
        line = opened.readline(LONGEST + 1)
    if len(line) > LONGEST:
        raise ValueError(f"its first line has more than {LONGEST:,} bytes")
    return line.splitlines()[0] if line else b""
