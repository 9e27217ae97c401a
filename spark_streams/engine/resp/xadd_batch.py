"""Batches: pipelined XADDs of one key and one shape, recognised as one unit instead of command by command.

A producer sends the same command many times, and only the values differ:

    *7 $4 XADD $1 s $1 *   $1 f $3 123 $1 g $2 ab      prefix, then names and values
    *7 $4 XADD $1 s $1 *   $1 f $1 9   $1 g $3 xyz
    |<---- prefix ---->|   |<---- section ------>|      a section has exactly the bytes that a reader receives

A *shape* is the prefix (key, `MAXLEN ~ n` if it was sent, ID `*`) with the names of the fields. It becomes a regular
expression that matches exactly one well-formed section: the given names, and values of their announced lengths. A chunk
is a batch only if it equals prefix section prefix section …: the sections are joined again and compared with it, so
that a payload that looks like a command cannot be mistaken for one. A batch ends before the first byte that does not
fit. The parser reads the following bytes, and all commands until a shape has been seen twice.

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

from spark_streams.engine.resp.wire_replies import bulk

SHORTEST = 256  # bytes of a chunk from which on a batch is searched
_LEARN_FROM = 4096  # bytes of a chunk from which a shape may be learned
_MAX_FIELDS = 32
_MAX_SHAPES = 64
_LONGEST_SHAPE = 16_384  # bytes of a prefix with its names
_SHORT = 100  # lengths below may vary

_COUNT = re.compile(rb"\*([1-9][0-9]?)\r\n")
_BULK = re.compile(rb"\$(0|[1-9][0-9]{0,6})\r\n")
_THRESHOLD = re.compile(rb"[1-9][0-9]{0,17}")


def _any_short_value() -> bytes:
    """Return a pattern of a bulk string of 0 … 99 bytes: the digits of its length select how many bytes match."""

    def value_pattern(length: int) -> bytes:
        return rb"\r\n" + (b".{%d}" % length if length else b"")

    tens = [
        value_pattern(ten) + b"".join(b"|%d%b" % (unit, value_pattern(10 * ten + unit)) for unit in range(10) if ten)
        for ten in range(10)
    ]
    return b"|".join(b"%d(?:%b)" % (ten, choices) for ten, choices in enumerate(tens))


_SHORT_VALUE = _any_short_value()


class BatchShape:
    """The common part of all commands of a batch."""

    def __init__(
        self, prefix: bytes, key: bytes, keep: int | None, names: list[bytes], pattern: re.Pattern[bytes]
    ) -> None:
        self.prefix = prefix
        self.key = key
        self.keep = keep  # MAXLEN ~ keep
        self.names = names  # of the fields
        self.pattern = pattern  # prefix and section; its group is the section


class XaddBatch:
    """Adjacent commands of one shape: `raw` is the bytes received, `sections` the names and values of each."""

    __slots__ = ("raw", "sections", "shape")

    def __init__(self, shape: BatchShape, raw: bytes, sections: list[bytes]) -> None:
        self.shape = shape
        self.raw = raw
        self.sections = sections

    def commands(self) -> list[list[bytes]]:
        """Return the batch as single commands."""
        reader = hiredis.Reader()
        reader.feed(self.raw)
        return [reader.gets() for _ in self.sections]


def find_batch(shape: BatchShape, data: bytes) -> XaddBatch | None:
    """Return the batch at the start of the data, if it has this shape and at least two commands."""
    prefix = shape.prefix
    sections = shape.pattern.findall(data)
    if len(sections) < 2:
        return None
    batch_bytes = prefix + prefix.join(sections)
    if len(batch_bytes) != len(data):
        if not data.startswith(batch_bytes):
            # Another command stands between them: the batch ends before it.
            common_bytes = _common_prefix_length(batch_bytes, data)
            ends = list(accumulate(sections, lambda end, section: end + len(prefix) + len(section), initial=0))
            del sections[bisect_right(ends, common_bytes) - 1 :]
            if len(sections) < 2:
                return None
            batch_bytes = prefix + prefix.join(sections)
    elif batch_bytes != data:
        return None
    return XaddBatch(shape, batch_bytes, sections)


def _common_prefix_length(first: bytes, second: bytes) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def make_at_once(job: Callable[[], None]) -> None:
    """Make a shape while its commands wait."""
    job()


class BackgroundShapeMaker:
    """Makes shapes in a thread, one at a time, for at most a tenth of the time. Other requests meanwhile are dropped.

    The regular expression of a shape takes 1-3 ms per field, during which no client would be served.
    """

    def __init__(self) -> None:
        self._next = 0.0  # time.monotonic() before which no job starts

    def __call__(self, job: Callable[[], None]) -> None:
        """Start the job in a thread. A later command of the shape asks for the shape again."""
        if time.monotonic() >= self._next:
            self._next = math.inf
            threading.Thread(target=self._do, args=(job,), daemon=True).start()

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            self._next = time.monotonic() + 9 * time.thread_time()


class Shapes:
    """The shapes seen by one engine. A shape is made when it is seen for the second time, in a chunk of enough bytes.

    `make` runs the job, or starts it in a thread.
    """

    def __init__(
        self, min_chunk_bytes: int = _LEARN_FROM, make: Callable[[Callable[[], None]], None] = make_at_once
    ) -> None:
        self._min_chunk_bytes = min_chunk_bytes
        self.make = make
        self._shapes: dict[tuple[bytes, ...], BatchShape | None] = {}

    def learn(self, data: bytes) -> BatchShape | None:
        """Return the shape of the first command in the data, if that command may be part of a batch."""
        if len(data) < self._min_chunk_bytes:
            return None
        args, ends = _first_command(data)
        if not 5 <= len(args) <= 2 * _MAX_FIELDS + 6:
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
        if len(prefix) + sum(map(len, names)) > _LONGEST_SHAPE:
            return None
        signature = (prefix, *names, b"%a" % long)
        if signature not in self._shapes:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[signature] = None
            return None
        shape = self._shapes[signature]
        if shape is None:
            keep = int(args[4]) if id_at == 5 else None

            def make() -> None:
                self._shapes[signature] = make_shape(prefix, args[1], keep, names, long)

            self.make(make)
        return self._shapes.get(signature)


def make_shape(prefix: bytes, key: bytes, keep: int | None, names: Sequence[bytes], long: Sequence[int]) -> BatchShape:
    """Return a shape whose values are short, or have exactly the length that `long` gives for them."""
    section = b""
    for name, length in zip(names, long, strict=True):
        exactly = rb"|%d\r\n.{%d}" % (length, length) if length else b""
        section += b"%b(?:%b%b)\r\n" % (re.escape(bulk(name) + b"$"), _SHORT_VALUE, exactly)
    return BatchShape(prefix, key, keep, list(names), re.compile(b"%b(%b)" % (re.escape(prefix), section), re.DOTALL))


def _first_command(data: bytes) -> tuple[list[bytes], list[int]]:
    """Return the arguments of the first command in the data, and where each ends; none if it is not canonical."""
    args: list[bytes] = []
    ends: list[int] = []
    count = _COUNT.match(data)
    if count is None:
        return args, ends
    position = count.end()
    for _ in range(int(count[1])):
        header = _BULK.match(data, position)
        if header is None:
            return [], []
        position = header.end() + int(header[1]) + 2
        if data[position - 2 : position] != b"\r\n":
            return [], []
        args.append(data[header.end() : position - 2])
        ends.append(position)
    return args, ends
