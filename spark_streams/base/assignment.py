r"""A field and its value as one text: NAME=VALUE. In the name, `\=` is an equals sign and `\\` a backslash. Pure."""

from __future__ import annotations

import re

_NAME = re.compile(r"((?:\\[\\=]|\\(?![\\=])|[^\\=])*)=(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\([\\=])")
_MUST_ESCAPE = re.compile(r"=|\\(?=[\\=]|$)")


def parse_assignment(text: str) -> tuple[str, str] | None:
    """Return name and value; None if the text has no equals sign that ends a name."""
    match = _NAME.fullmatch(text)
    return None if match is None else (_ESCAPED.sub(r"\1", match[1]), match[2])


def assignment(name: str, value: str) -> str:
    """Return the text that `parse_assignment` reads as this name and value."""
    escaped = _MUST_ESCAPE.sub(lambda match: "\\" + match[0], name)
    return f"{escaped}={value}"
