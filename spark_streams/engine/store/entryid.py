"""Entry ids as single integers.

Inside the store an ID is `ms << 64 | seq`: one integer compares, hashes and bisects faster than a pair, and the next ID
is plus one. Texts are parsed as Redis' `streamGenericParseIDOrReply` does. It accepts a little more than
`spark_streams.base.ids`: leading zeros and blanks, because `strtoull` does.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from spark_streams.base.ids import U64_MAX

LOWEST = 0
HIGHEST = (U64_MAX << 64) | U64_MAX

_LENIENT = re.compile(rb"[ \t\n\v\f\r]*\+?([0-9]+)")


class BadEntryIdError(ValueError):
    """The text is not an entry ID."""


def number(digits: bytes) -> int:
    """Return an unsigned 64-bit number. Raises EntryIdError."""
    if not digits.isdigit():
        match = _LENIENT.fullmatch(digits)
        if match is None:
            raise BadEntryIdError(digits)
        digits = match[1]
    value = int(digits) if len(digits) <= 64 else U64_MAX + 1
    if value > U64_MAX:
        raise BadEntryIdError(digits)
    return value


def parse(text: bytes, missing_seq: int = 0) -> int:
    """Parse `b"5-3"`, or `b"5"` with the sequence number `missing_seq`. `-` and `+` are errors. Raises EntryIdError."""
    if len(text) > 127:
        raise BadEntryIdError(text)
    ms, dash, seq = text.partition(b"-")
    return (number(ms) << 64) | (number(seq) if dash else missing_seq)


def parse_bound(text: bytes, missing_seq: int = 0) -> int:
    """As `parse`; `-` is the lowest ID, `+` the highest."""
    if text == b"-":
        return LOWEST
    if text == b"+":
        return HIGHEST
    return parse(text, missing_seq)


def text(entry_id: int) -> bytes:
    """Return an ID as `<ms>-<seq>`."""
    return b"%d-%d" % (entry_id >> 64, entry_id & U64_MAX)


# -- IDs in order, as runs of consecutive IDs, and the texts of consecutive IDs, made in blocks ------------------------

# Entries that arrive within one millisecond have consecutive IDs, so a node needs few numbers for its hundred IDs:
#
#     slot   0                 3                                  places
#     id     1526919030474-0   1526919030475-0                    ms, seq of the first of each run
#            …474-1 …474-2     …475-1 …475-2 …475-3 …
#
# As text, IDs within one thousand differ in their last three digits only. `blocks` cuts a run of IDs so that every ID
# of a block is the same head plus an entry of a precomputed table.


class IdRuns:
    """Ids in ascending order."""

    __slots__ = ("_ms", "_places", "_seq", "count", "first", "last")

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        self.last = -2  # no first ID follows it
        self._places: array[int] = array("I")  # index at which each run begins
        self._ms: array[int] = array("Q")  # of the first id of each run
        self._seq: array[int] = array("Q")

    @property
    def memory(self) -> int:
        """Approximate bytes of memory."""
        return 20 * len(self._places) + 240

    def append(self, entry_id: int) -> None:
        """Append an ID above all others."""
        self.extend(entry_id, 1)

    def extend(self, entry_id: int, count: int) -> None:
        """Append consecutive IDs, starting with this one."""
        if entry_id != self.last + 1:
            if not self.count:
                self.first = entry_id
            self._places.append(self.count)
            self._ms.append(entry_id >> 64)
            self._seq.append(entry_id & U64_MAX)
        self.count += count
        self.last = entry_id + count - 1

    def cut(self, count: int) -> None:
        """Keep only the first `count` IDs, at least one."""
        last = self[count - 1]
        runs = bisect_right(self._places, count - 1)
        del self._places[runs:], self._ms[runs:], self._seq[runs:]
        self.count, self.last = count, last

    def _head(self, run: int) -> int:
        return (self._ms[run] << 64) | self._seq[run]

    def __getitem__(self, index: int) -> int:
        run = bisect_right(self._places, index) - 1 if len(self._places) > 1 else 0
        return self._head(run) + index - self._places[run]

    def index(self, entry_id: int) -> int:
        """Return the first index whose ID is not below this one; `count` if there is none."""
        if entry_id <= self.first:
            return 0
        if entry_id > self.last:
            return self.count
        runs = len(self._places)
        run = bisect_right(range(runs), entry_id, key=self._head) - 1 if runs > 1 else 0
        end = self._places[run + 1] if run + 1 < runs else self.count
        return min(self._places[run] + entry_id - self._head(run), end)

    def runs(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield (first ID, count) of the consecutive IDs at the indexes low … high-1."""
        run = bisect_right(self._places, low) - 1
        while low < high:
            end = min(self._places[run + 1] if run + 1 < len(self._places) else self.count, high)
            yield self._head(run) + low - self._places[run], end - low
            low = end
            run += 1

    def between(self, low: int, high: int) -> list[int]:
        """Return the IDs at the indexes low … high-1."""
        ids: list[int] = []
        for first, count in self.runs(low, high):
            ids += range(first, first + count)
        return ids

    def texts(self, low: int, high: int) -> list[bytes]:
        """Return the texts of the IDs at the indexes low … high-1."""
        ids: list[bytes] = []
        for first, count in self.runs(low, high):
            if count == 1:
                ids.append(b"%d-%d" % (first >> 64, first & U64_MAX))
                continue
            for block in blocks(first, count):
                head = block.head
                ids += [head + tail for tail in DIGITS[block.padded][block.low : block.low + block.size]]
        return ids


class Block(NamedTuple):
    """IDs whose texts are `head` and the last digits: `low`, `low`+1 …, with leading zeros if `padded`."""

    first: int
    size: int
    head: bytes
    padded: bool
    low: int

    @property
    def width(self) -> int:
        """Length of each ID's text."""
        return len(self.head) + (3 if self.padded else len(b"%d" % self.low))


# The last digits of an ID: without leading zeros below 1,000, with leading zeros above.
DIGITS = ([b"%d" % number for number in range(1000)], [b"%03d" % number for number in range(1000)])


def blocks(first: int, count: int) -> Iterator[Block]:
    """Yield the consecutive IDs from `first` on, in blocks of texts of equal length."""
    while count:
        ms, seq = first >> 64, first & U64_MAX
        if seq < 1000:
            limit = 10 if seq < 10 else 100 if seq < 100 else 1000
            block = Block(first, min(count, limit - seq), b"%d-" % ms, False, seq)
        else:
            thousands, low = divmod(seq, 1000)
            upto = min(1000 - low, U64_MAX - seq + 1)
            block = Block(first, min(count, upto), b"%d-%d" % (ms, thousands), True, low)
        yield block
        first += block.size
        count -= block.size
