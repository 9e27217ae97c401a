"""Inline commands: a line of words, as somebody types them. Source: Redis' `processInlineBuffer`, `sdssplitargs`."""

from __future__ import annotations

import re

from spark_streams.engine.resp.requests import MAX_INLINE, ProtocolError, Request

_PLAIN = re.compile(rb"[^\"'\0\v\f]*")


def take_inline(data: bytes, start: int, found: list[Request]) -> int:
    """The command of one line; where it ends, -1 if it is not whole yet. Raises ProtocolError."""
    line = data.find(b"\n", start, start + MAX_INLINE + 2)
    if line < 0:
        if len(data) - start > MAX_INLINE:
            raise ProtocolError("too big inline request")
        return -1
    text = data[start:line].removesuffix(b"\r")
    arguments = text.split() if _PLAIN.fullmatch(text) else split_quoted(text)
    if arguments is None:
        raise ProtocolError("unbalanced quotes in request")
    if arguments:
        found.append(arguments)
    return line + 1


# Blanks, what is not quoted, and what is. Each repetition can match in one way only: the time is that of its length.
_WORD = re.compile(
    rb"""
    [ \t\n\v\f\r\0]*
    ([^ \n\r\t\0"']*)
    (?: "([^"\\]*(?:\\.[^"\\]*)*)"
      | '([^'\\]*(?:\\(?:'|(?!'))[^'\\]*)*)'
    )?
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(rb"\\(?:x[0-9a-fA-F]{2}|.)", re.DOTALL)
_HEX = "0123456789abcdefABCDEF"
# What each escape in double quotes stands for.
_MEANT = {b"\\" + bytes((byte,)): bytes((byte,)) for byte in range(256)}
_MEANT.update({b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t", b"\\b": b"\b", b"\\a": b"\a"})
_MEANT.update({f"\\x{one}{two}".encode(): bytes.fromhex(one + two) for one in _HEX for two in _HEX})


def split_quoted(text: bytes) -> list[bytes] | None:
    """Words of a line as redis-cli quotes them (`sdssplitargs`); None when a quote is left open."""
    words: list[bytes] = []
    at, end = 0, len(text)
    while at < end:
        found = _WORD.match(text, at)
        assert found is not None  # it may be empty
        word, double, single = found.groups()
        at = found.end()
        if double is not None:
            word += _ESCAPED.sub(lambda escaped: _MEANT[escaped[0]], double) if b"\\" in double else double
        elif single is not None:
            word += single.replace(b"\\'", b"'")
        elif text[at : at + 1] in (b'"', b"'"):
            return None
        elif not word:
            break
        words.append(word)
        if (double is not None or single is not None) and at < end and text[at] not in b" \t\n\v\f\r":
            return None
    return words
