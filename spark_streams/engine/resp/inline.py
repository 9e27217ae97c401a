"""Inline commands: a line of words, as typed by a person. Source: Redis' `processInlineBuffer`, `sdssplitargs`."""

from __future__ import annotations

import re

from spark_streams.engine.resp.requests import MAX_INLINE, ProtocolError, Request

_PLAIN = re.compile(rb"[^\"'\0\v\f]*")


def take_inline(data: bytes, start: int, requests: list[Request]) -> int:
    """Take the command of one line; return the position behind it, -1 if incomplete. Raises ProtocolError."""
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
        requests.append(arguments)
    return line + 1


# Blanks, an unquoted part, a quoted part. Each repetition matches in only one way, so the time is linear.
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
# Values of the escapes in double quotes.
_ESCAPES = {b"\\" + bytes((byte,)): bytes((byte,)) for byte in range(256)}
_ESCAPES.update({b"\\n": b"\n", b"\\r": b"\r", b"\\t": b"\t", b"\\b": b"\b", b"\\a": b"\a"})
_ESCAPES.update({f"\\x{high}{low}".encode(): bytes.fromhex(high + low) for high in _HEX for low in _HEX})


def split_quoted(text: bytes) -> list[bytes] | None:
    """Return the words of a line with redis-cli's quoting (`sdssplitargs`); None if a quote is not closed."""
    words: list[bytes] = []
    position, end = 0, len(text)
    while position < end:
        match = _WORD.match(text, position)
        assert match is not None  # the match may be empty
        word, double, single = match.groups()
        position = match.end()
        if double is not None:
            word += _ESCAPED.sub(lambda escaped: _ESCAPES[escaped[0]], double) if b"\\" in double else double
        elif single is not None:
            word += single.replace(b"\\'", b"'")
        elif text[position : position + 1] in (b'"', b"'"):
            return None
        elif not word:
            break
        words.append(word)
        if (double is not None or single is not None) and position < end and text[position] not in b" \t\n\v\f\r":
            return None
    return words
