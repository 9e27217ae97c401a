"""Text of other clients for a terminal, a log or a page: names of streams, values of entries, messages of servers.

A terminal executes control characters (U+001B, U+009B, DEL), and shows text after U+202E from right to left. Every
character that Python does not call printable is written as its escape: `\\x9b`, `\\u202e`. The test
tests/model/test_printable.py finds output that does not use this module. Pure.
"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """Return the text in one line, with escapes for characters that could mislead a terminal or a reader."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines with the same escapes in each line."""
    return "\n".join(map(printable, text.split("\n")))


def json_text(value: object, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """Return the value as a JSON document, in which printable characters of any script are not escaped. indent,
    separators: as for json.dumps."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    # A line end is never within a string: JSON escapes it there.
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"
