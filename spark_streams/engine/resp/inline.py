"""Inline commands: a line of words, as somebody types them. Source: Redis' `processInlineBuffer`, `sdssplitargs`."""

from __future__ import annotations

import re

from spark_streams.engine.resp.requests import MAX_INLINE, ProtocolError, Request

_PLAIN = re.compile(rb"[^\"'\0\v\f]*")


def take_inline(data: bytes, start: int, found: list[Request]) -> int:
    """The command of one line; where it ends, -1 if it is not whole yet. Raises ProtocolError."""
    line = data.find(b"\n", start)
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


_ESCAPES = {110: 10, 114: 13, 116: 9, 98: 8, 97: 7}


def split_quoted(text: bytes) -> list[bytes] | None:
    """Words of a line as redis-cli quotes them (`sdssplitargs`); None when a quote is left open."""
    words: list[bytes] = []
    at, end = 0, len(text)
    while True:
        while at < end and text[at] in b" \t\n\v\f\r\0":
            at += 1
        if at >= end:
            return words
        word = bytearray()
        quote = 0
        while at < end:
            byte = text[at]
            if quote == 34 and byte == 92 and text[at + 1 : at + 2] == b"x" and _is_hex(text[at + 2 : at + 4]):
                word.append(int(text[at + 2 : at + 4], 16))
                at += 3
            elif quote == 34 and byte == 92 and at + 1 < end:
                at += 1
                word.append(_ESCAPES.get(text[at], text[at]))
            elif quote == 39 and byte == 92 and text[at + 1 : at + 2] == b"'":
                at += 1
                word.append(39)
            elif quote and byte == quote:
                if at + 1 < end and text[at + 1] not in b" \t\n\v\f\r":
                    return None
                quote = 0
                at += 1
                break
            elif quote:
                word.append(byte)
            elif byte in b" \n\r\t\0":
                break
            elif byte in (34, 39):
                quote = byte
            else:
                word.append(byte)
            at += 1
        if quote:
            return None
        words.append(bytes(word))


def _is_hex(digits: bytes) -> bool:
    return len(digits) == 2 and all(digit in b"0123456789abcdefABCDEF" for digit in digits)
