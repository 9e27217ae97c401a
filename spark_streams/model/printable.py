"""Text of others on its way to a terminal, a log or a page: names of streams, values of entries, messages of servers.

A terminal obeys control characters (U+001B, U+009B, DEL), and shows what follows U+202E from right to left. Everything
that Python does not call printable is written as its escape: `\\x9b`, `\\u202e`. tests/model/test_printable.py finds
output that goes past this module. Pure.
"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """The text in one line, with escapes for what a terminal or a reader could be misled by."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay apart."""
    return "\n".join(map(printable, text.split("\n")))


def json_text(value: object, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """A JSON document of the same value. Other letters than Latin ones stand for themselves. indent, separators: as for
    json.dumps."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    # A line end is never within a string: there JSON itself has an escape.
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"
