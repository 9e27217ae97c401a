"""Text of other clients for a terminal, a log or a page: names of streams, values of entries, messages of servers.

A terminal executes control characters (U+001B, U+009B, DEL), and shows text after U+202E from right to left. Every
character that Python does not call printable is written as its escape: `\\x9b`, `\\u202e`. The test
tests/base/test_printable.py finds output that does not use this module. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re

# A backslash of a name that looks like the beginning of an escape.
_LIKE_A_BYTE = re.compile(rb"\\(?=x(?:[89a-f][0-9a-f]|5c))")
_LIKE_A_CHARACTER = re.compile(r"\\(?=u[0-9a-f]{4}|U[0-9a-f]{8})")

_LONGEST = 200  # characters of a label
_HASH = 32  # characters of the hash in a shortened label
_SHORTENED = re.compile(rf".{{{_LONGEST - _HASH - 1}}}…[0-9a-f]{{{_HASH}}}", re.DOTALL)


def name_text(name: bytes | str) -> str:
    """Return the name of a stream, group or consumer as text. Two names never have the same text.

    Bytes that are not UTF-8 become `\\xff`. If a name itself has such a text, its backslash becomes `\\x5c`.
    name: as text, if it is from the command line (surrogateescape) or UTF-8.
    """
    raw = name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
    return _LIKE_A_BYTE.sub(rb"\\x5c", raw).decode("utf-8", "backslashreplace")


def is_utf8(text: str) -> bool:
    """Whether the text can be encoded: it has no half of a surrogate pair, and no byte that was not UTF-8."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def label_text(text: str) -> str:
    """Return a text as a label of a metric: printable, and two texts never have the same label.

    Prometheus reads no escapes but those of `\\`, `"` and line ends. So other characters that are not printable are
    written as `\\u202e` within the value.
    """
    if text.isprintable() and "\\" not in text:
        return shortened(text)
    text = _LIKE_A_CHARACTER.sub(r"\\u005c", text)
    return shortened("".join(c if c.isprintable() or c == "\n" else _numbered(c) for c in text))


def shortened(text: str) -> str:
    """Return a text of at most 200 characters: of a longer one, or one that is itself so formed, the beginning and a
    hash. Two texts never have the same one."""
    if len(text) <= _LONGEST and not _SHORTENED.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[: _LONGEST - _HASH - 1]}…{digest[:_HASH]}"


def _numbered(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def printable(text: str) -> str:
    """Return the text in one line, with escapes for characters that could mislead a terminal or a reader."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines with the same escapes in each line."""
    return "\n".join(map(printable, text.split("\n")))


def quoted(text: str) -> str:
    """Return the text as a string of TOML and of Python, in which printable characters are not escaped."""
    shown = json.dumps(text, ensure_ascii=False)
    return shown if shown.isprintable() else "".join(c if c.isprintable() else _numbered(c) for c in shown)


def json_text(value: object, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """Return the value as a JSON document, in which printable characters of any script are not escaped. indent,
    separators: as for json.dumps."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    # A line end is never within a string: JSON escapes it there.
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"
