"""Batches: pipelined XADDs of one key and one shape, recognised as a whole instead of command by command.

A producer sends the same command again and again, and only the values differ:

    *7 $4 XADD $1 s $1 *   $1 f $3 123 $1 g $2 ab      prefix, then names and values
    *7 $4 XADD $1 s $1 *   $1 f $1 9   $1 g $3 xyz
    |<---- prefix ---->|   |<---- section ------>|      a section is byte for byte what a reader will be sent

A *shape* is the prefix (key, `MAXLEN ~ n` where it is given, id `*`) with the names of the fields; it becomes a regular
expression that takes exactly one well-formed section: names as they are, values by their announced lengths. A chunk is
a batch if it *is* prefix section prefix section …: it is put together again from the sections found and compared, so a
payload that looks like a command cannot deceive. A batch ends before the first byte that does not fit; what follows is
the parser's, as is everything before a shape has been seen twice.

Values of up to 99 bytes may vary in length from entry to entry; a longer one must be as long as in the shape's first
command. Other commands, explicit ids and other options are never a batch.
"""

from __future__ import annotations

import math
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

import hiredis

from spark_streams.engine.resp.replies import bulk

SHORTEST = 256  # bytes of a chunk from which on a batch is looked for
_LEARN_FROM = 4096  # bytes of a chunk that may teach a shape
_MOST_FIELDS = 32
_MOST_SHAPES = 64
_SHORT = 100  # lengths below vary freely

_COUNT = re.compile(rb"\*([1-9][0-9]?)\r\n")
_BULK = re.compile(rb"\$(0|[1-9][0-9]{0,6})\r\n")
_THRESHOLD = re.compile(rb"[1-9][0-9]{0,17}")


def _any_short_value() -> bytes:
    """A bulk string of 0 … 99 bytes: its length decides, digit by digit, how many bytes are taken."""

    def taken(length: int) -> bytes:
        return rb"\r\n" + (b".{%d}" % length if length else b"")

    tens = [
        taken(ten) + b"".join(b"|%d%b" % (one, taken(10 * ten + one)) for one in range(10) if ten) for ten in range(10)
    ]
    return b"|".join(b"%d(?:%b)" % (ten, choices) for ten, choices in enumerate(tens))


_SHORT_VALUE = _any_short_value()


class Shape:
    """What all commands of a batch have in common. keep: MAXLEN ~ keep; pattern: prefix and section; the section is its
    group."""

    def __init__(
        self, prefix: bytes, key: bytes, keep: int | None, names: list[bytes], pattern: re.Pattern[bytes]
    ) -> None:
        self.prefix = prefix
        self.key = key
        self.keep = keep
        self.names = names
        self.pattern = pattern


class XaddBatch:
    """Neighbouring commands of one shape: `raw` is what was sent, `sections` the names and values of each."""

    __slots__ = ("raw", "sections", "shape")

    def __init__(self, shape: Shape, raw: bytes, sections: list[bytes]) -> None:
        self.shape = shape
        self.raw = raw
        self.sections = sections

    def commands(self) -> list[list[bytes]]:
        """The same as single commands."""
        reader = hiredis.Reader()
        reader.feed(self.raw)
        return [reader.gets() for _ in self.sections]


def find_batch(shape: Shape, data: bytes) -> XaddBatch | None:
    """The batch with which the data begins, if it is one of this shape and of two commands or more."""
    prefix = shape.prefix
    sections = shape.pattern.findall(data)
    if len(sections) < 2:
        return None
    whole = prefix + prefix.join(sections)
    if len(whole) != len(data):
        if not data.startswith(whole):
            # Something stands between them: only what comes before it.
            same = _same_bytes(whole, data)
            ends = list(accumulate(sections, lambda end, section: end + len(prefix) + len(section), initial=0))
            del sections[bisect_right(ends, same) - 1 :]
            if len(sections) < 2:
                return None
            whole = prefix + prefix.join(sections)
    elif whole != data:
        return None
    return XaddBatch(shape, whole, sections)


def _same_bytes(one: bytes, other: bytes) -> int:
    """How many bytes from the start on are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def at_once(job: Callable[[], None]) -> None:
    """Make a shape while its commands wait."""
    job()


class Aside:
    """Makes shapes in a thread, one at a time, for a tenth of the time at the most. What comes meanwhile is dropped.

    The regular expression of a shape takes 1-3 ms per field, in which no client would be served.
    """

    def __init__(self) -> None:
        self._next = 0.0  # no job before this time

    def __call__(self, job: Callable[[], None]) -> None:
        """Do it later; the shape is asked for again with its next commands."""
        if time.monotonic() >= self._next:
            self._next = math.inf
            threading.Thread(target=self._do, args=(job,), daemon=True).start()

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            self._next = time.monotonic() + 9 * time.thread_time()


class Shapes:
    """The shapes seen by one engine; each is made when it is seen for the second time, in chunks of `least` bytes.

    `make` does that, or has it done.
    """

    def __init__(self, least: int = _LEARN_FROM, make: Callable[[Callable[[], None]], None] = at_once) -> None:
        self._least = least
        self._make = make
        self._known: dict[tuple[bytes, ...], Shape | None] = {}

    def learn(self, data: bytes) -> Shape | None:
        """The shape of the command with which the data begins, if it may become a batch."""
        if len(data) < self._least:
            return None
        args, ends = _first_command(data)
        if not 5 <= len(args) <= 2 * _MOST_FIELDS + 6:
            return None
        id_at = 5 if len(args) > 5 and args[2].lower() == b"maxlen" else 2
        names = args[id_at + 1 :: 2]
        if args[0].lower() != b"xadd" or args[id_at] != b"*" or len(args) < id_at + 3 or (len(args) - id_at) % 2 == 0:
            return None
        if id_at == 5 and (args[3] != b"~" or not _THRESHOLD.fullmatch(args[4])):
            return None
        values = args[id_at + 2 :: 2]
        long = [len(value) if len(value) >= _SHORT else 0 for value in values]
        prefix = data[: ends[id_at]]
        signature = (prefix, *names, b"%a" % long)
        if signature not in self._known:
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            self._known[signature] = None
            return None
        shape = self._known[signature]
        if shape is None:
            keep = int(args[4]) if id_at == 5 else None

            def make() -> None:
                self._known[signature] = make_shape(prefix, args[1], keep, names, long)

            self._make(make)
        return self._known.get(signature)


def make_shape(prefix: bytes, key: bytes, keep: int | None, names: Sequence[bytes], long: Sequence[int]) -> Shape:
    """A shape whose values are short, or where `long` gives a length, also of just that length."""
    section = b""
    for name, length in zip(names, long, strict=True):
        exactly = rb"|%d\r\n.{%d}" % (length, length) if length else b""
        section += b"%b(?:%b%b)\r\n" % (re.escape(bulk(name) + b"$"), _SHORT_VALUE, exactly)
    return Shape(prefix, key, keep, list(names), re.compile(b"%b(%b)" % (re.escape(prefix), section), re.DOTALL))


def _first_command(data: bytes) -> tuple[list[bytes], list[int]]:
    """The arguments of the command with which the data begins, and where each ends; none if it is not canonical."""
    args: list[bytes] = []
    ends: list[int] = []
    count = _COUNT.match(data)
    if count is None:
        return args, ends
    at = count.end()
    for _ in range(int(count[1])):
        header = _BULK.match(data, at)
        if header is None:
            return [], []
        at = header.end() + int(header[1]) + 2
        if data[at - 2 : at] != b"\r\n":
            return [], []
        args.append(data[header.end() : at - 2])
        ends.append(at)
    return args, ends
