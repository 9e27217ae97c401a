"""Replies of commands, and their bytes in RESP2 and RESP3.

A handler returns either plain `bytes`, which are the wire form in both protocols (`OK`, an integer, stored entries), or
one of the types below, which is encoded for the client's protocol at the end. No type is guessed from a Python value.
Source: the RESP specification; RESP2 forms as in Redis 7 (a map becomes a flat array, a set an array, a verbatim string
a bulk string).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TypeAlias

OK = b"+OK\r\n"
PONG = b"+PONG\r\n"
QUEUED = b"+QUEUED\r\n"
EMPTY_ARRAY = b"*0\r\n"


class _Headers(dict[int, bytes]):
    """`$<length>` for any length; short lengths are precomputed."""

    def __missing__(self, length: int) -> bytes:
        return b"$%d" % length


HEADERS = _Headers({length: b"$%d" % length for length in range(1024)})


class CommandError(Exception):
    """A command failed; `text` is the error line without the leading `-`."""

    def __init__(self, text: str | bytes) -> None:
        self.text = text.encode() if isinstance(text, str) else text
        super().__init__(text)


class Typed(ABC):
    """A reply whose bytes depend on the protocol."""

    __slots__ = ()

    @abstractmethod
    def write(self, out: list[bytes], resp: int) -> None:
        """Append the wire form for RESP `resp` (2 or 3)."""


Reply: TypeAlias = bytes | Typed


def bulk(data: bytes) -> bytes:
    """A bulk string."""
    return b"%b\r\n%b\r\n" % (HEADERS[len(data)], data)


def integer(value: int) -> bytes:
    """An integer."""
    return b":%d\r\n" % value


def simple(text: str) -> bytes:
    """A simple string."""
    return b"+%b\r\n" % text.encode()


def error(text: bytes) -> bytes:
    """Return an error line; line ends in the text become blanks, as in Redis."""
    return b"-%b\r\n" % text.replace(b"\r", b" ").replace(b"\n", b" ")


def bulks(items: Iterable[bytes]) -> list[Reply]:
    """Return bulk strings, as the items of an aggregate."""
    return [bulk(item) for item in items]


class Nil(Typed):
    """No value: `$-1` in RESP2."""

    __slots__ = ()

    def write(self, out: list[bytes], resp: int) -> None:
        out.append(b"$-1\r\n" if resp == 2 else b"_\r\n")


class NilArray(Typed):
    """No list: `*-1` in RESP2."""

    __slots__ = ()

    def write(self, out: list[bytes], resp: int) -> None:
        out.append(b"*-1\r\n" if resp == 2 else b"_\r\n")


NIL = Nil()
NIL_ARRAY = NilArray()


def encode(reply: Reply, resp: int) -> bytes:
    """Return the wire form of any reply."""
    if isinstance(reply, bytes):
        return reply
    out: list[bytes] = []
    reply.write(out, resp)
    return b"".join(out)


class Array(Typed):
    """A list of replies."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[Reply]) -> None:
        self.items = items

    def write(self, out: list[bytes], resp: int) -> None:
        out.append(b"*%d\r\n" % len(self.items))
        _write_all(self.items, out, resp)


class SetOf(Array):
    """A set; an array in RESP2."""

    __slots__ = ()

    def write(self, out: list[bytes], resp: int) -> None:
        out.append((b"*%d\r\n" if resp == 2 else b"~%d\r\n") % len(self.items))
        _write_all(self.items, out, resp)


class Map(Typed):
    """Keys and values; a flat array in RESP2."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Sequence[tuple[Reply, Reply]]) -> None:
        self.pairs = pairs

    def write(self, out: list[bytes], resp: int) -> None:
        out.append(b"*%d\r\n" % (2 * len(self.pairs)) if resp == 2 else b"%%%d\r\n" % len(self.pairs))
        for pair in self.pairs:
            _write_all(pair, out, resp)


class PairedMap(Typed):
    """Keys and values; an array of two-element arrays in RESP2 (XREAD)."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Sequence[tuple[Reply, Reply]]) -> None:
        self.pairs = pairs

    def write(self, out: list[bytes], resp: int) -> None:
        out.append((b"*%d\r\n" if resp == 2 else b"%%%d\r\n") % len(self.pairs))
        for pair in self.pairs:
            if resp == 2:
                out.append(b"*2\r\n")
            _write_all(pair, out, resp)


class Verbatim(Typed):
    """Text for a person to read; a bulk string in RESP2."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text

    def write(self, out: list[bytes], resp: int) -> None:
        if resp == 2:
            out.append(bulk(self.text))
        else:
            out.append(b"=%d\r\ntxt:%b\r\n" % (len(self.text) + 4, self.text))


class Pieces(Typed):
    """An array of `count` elements whose wire form is in pieces, the same in both protocols (stored entries)."""

    __slots__ = ("count", "pieces")

    def __init__(self, count: int, pieces: Sequence[bytes]) -> None:
        self.count = count
        self.pieces = pieces

    def write(self, out: list[bytes], resp: int) -> None:
        out.append(b"*%d\r\n" % self.count)
        out.extend(self.pieces)


def _write_all(items: Iterable[Reply], out: list[bytes], resp: int) -> None:
    for item in items:
        if isinstance(item, bytes):
            out.append(item)
        else:
            item.write(out, resp)
