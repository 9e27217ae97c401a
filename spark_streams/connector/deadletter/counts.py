"""Numbers of dead letters: by kind, and by reason of a stream, updated incrementally. Pure.

ReasonCounts divides a stream into sections. For each section, the number of its entries when it was read is known, and
the number of dead letters by reason:

    present first entry         read up to here                  present last entry
           |--- section ---|--- section ---|--- section ---|.......... new ..|

IDs only grow, so new entries are always at the end. Entries are removed from the front or from the middle. The stream's
length shows whether entries were removed: then the sections have more entries than the stream. Sections that end before
the stream's first entry are dropped. Others are read again, from the front, until the sum is right. So only new entries
are read, and as few others as possible.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.wire.lines import Index

_OTHER_KINDS = "(others)"

Kind = tuple[str, ...]


@dataclass
class KindCount:
    """Dead letters of a kind: their number, and the IDs of the first and the last one. The names are JSON fields."""

    letters: int
    first: str
    last: str


@dataclass
class KindCounts:
    """Counts by kind; a kind has a text for each column. Beyond max_kinds, all other kinds are counted together."""

    counts: dict[Kind, KindCount] = field(default_factory=dict)
    max_kinds: int = 1_000

    def add(self, ids: pa.Array, columns: Sequence[pa.Array | str], rows: Index) -> None:
        """Count these rows. columns: binary, or one text for all rows; null counts as empty."""
        if not len(rows):
            return
        indices = pa.array(rows)
        code = np.zeros(len(rows), np.int64)
        texts_of: list[list[str]] = []
        for column in columns:
            if isinstance(column, str):
                texts_of.append([column])
                continue
            coded = pc.fill_null(column.take(indices), b"").dictionary_encode()
            texts_of.append([text(value) for value in coded.dictionary.to_pylist()])
            code = code * len(texts_of[-1]) + coded.indices.to_numpy()
        kinds, first, numbers = np.unique(code, return_index=True, return_counts=True)
        last = len(code) - 1 - np.unique(code[::-1], return_index=True)[1]
        for kind, begin, end, number in zip(kinds.tolist(), first, last, numbers.tolist(), strict=True):
            texts: list[str] = []
            for values in reversed(texts_of):
                kind, index = divmod(kind, len(values)) if len(values) > 1 else (kind, 0)  # noqa: PLW2901
                texts.insert(0, values[index])
            self._count(tuple(texts), number, text(ids[int(rows[begin])].as_py()), text(ids[int(rows[end])].as_py()))

    def _count(self, kind: Kind, number: int, first: str, last: str) -> None:
        if kind not in self.counts and len(self.counts) >= self.max_kinds:
            kind = (_OTHER_KINDS,) * len(kind)
        have = self.counts.setdefault(kind, KindCount(0, first, last))
        have.letters += number
        have.last = last

    def merge(self, other: KindCounts) -> None:
        """Add the counts of later dead letters."""
        for kind, count in other.counts.items():
            self._count(kind, count.letters, count.first, count.last)

    @property
    def letters(self) -> int:
        """Number of all dead letters."""
        return sum(count.letters for count in self.counts.values())

    def __iter__(self) -> Iterator[tuple[Kind, KindCount]]:
        """Yield the most frequent kind first."""
        return iter(sorted(self.counts.items(), key=lambda kind_count: (-kind_count[1].letters, kind_count[0])))


SECTION = 2_000  # entries; more if there would be too many sections
MOST_SECTIONS = 500
REASONS = 50  # that are counted by name; all others are counted together


@dataclass
class _CountedSection:
    """Entries above the previous section up to `last`, at the time when they were read."""

    last: StreamId
    entries: int
    counts: KindCounts


@dataclass
class _Reread:
    """A section that is being read again, so far up to `upto`."""

    upto: StreamId
    entries: int = 0
    counts: KindCounts = field(default_factory=lambda: KindCounts(max_kinds=REASONS))


class ReasonCounts:
    """Counts of one stream. `update` takes the stream's state; `next_range` is the range to read then; `read` takes it
    page by page, until there is no range left. If the caller stops before, it can continue after the next update."""

    def __init__(self, section: int = SECTION, sections: int = MOST_SECTIONS) -> None:
        self._size, self._max_sections = section, sections
        self._sections: list[_CountedSection] = []
        self._length = 0
        self._first = self._last = MIN_ID
        self._added: int | None = None
        self._index = 0  # of the section that is read again next
        self._remaining = 0  # sections that may be read again before the next update
        self._reread: _Reread | None = None

    def update(self, length: int, first: StreamId, last: StreamId, added: int | None) -> None:
        """Take the stream's state. length: number of entries; first: ID of the oldest entry; last: the highest ID ever;
        added: number of entries ever added, None if the server does not count them."""
        fewer = added is not None and self._added is not None and added < self._added
        if last < self._last or fewer:  # another stream of that name, or an older state of this one
            self._sections.clear()
        removed = len(self._sections) if not length else bisect.bisect_left(self._sections, first, key=lambda s: s.last)
        del self._sections[:removed]
        if first != self._first or not self._sections:
            self._index, self._reread = 0, None  # entries of the first section were removed
        self._length, self._first, self._last, self._added = length, first, last, added
        self._remaining = len(self._sections)

    @property
    def next_range(self) -> tuple[StreamId, StreamId] | None:
        """(first, last) ID of the range to read next, from its beginning; None if the counts are complete."""
        if self._has_new:
            return self._covered.next(), self._last
        if self._entries <= self._length or not self._remaining:
            return None
        section = self._sections[self._index]
        begin = MIN_ID if not self._index else self._sections[self._index - 1].last.next()
        return (begin if self._reread is None else self._reread.upto.next()), section.last

    def read(self, upto: StreamId, entries: int, counts: KindCounts) -> None:
        """Take a page of `next_range`: the number of its entries up to this ID, and its dead letters by (reason,)."""
        if self._has_new:
            self._append(upto, entries, counts)
            return
        section = self._sections[self._index]
        reread = self._reread or _Reread(upto)
        reread.upto, reread.entries = upto, reread.entries + entries
        reread.counts.merge(counts)
        self._reread = reread
        if upto >= section.last:
            section.entries, section.counts, self._reread = reread.entries, reread.counts, None
            self._index, self._remaining = (self._index + 1) % len(self._sections), self._remaining - 1

    @property
    def uncounted(self) -> int:
        """Entries that have not been read yet, or were removed meanwhile."""
        return max(0, self._length - self._entries)

    @property
    def counts(self) -> KindCounts:
        """The counts of all sections, by (reason,)."""
        counts = KindCounts(max_kinds=REASONS)
        for section in self._sections:
            counts.merge(section.counts)
        return counts

    @property
    def _covered(self) -> StreamId:
        return self._sections[-1].last if self._sections else MIN_ID

    @property
    def _has_new(self) -> bool:
        return self._length > 0 and self._covered < self._last

    @property
    def _entries(self) -> int:
        return sum(section.entries for section in self._sections)

    def _append(self, upto: StreamId, entries: int, counts: KindCounts) -> None:
        end = self._sections[-1] if self._sections else None
        is_read_again = self._reread is not None and self._index == len(self._sections) - 1
        if end is not None and end.entries + entries <= self._size and not is_read_again:
            end.last, end.entries = upto, end.entries + entries
            end.counts.merge(counts)
            return
        self._sections.append(_CountedSection(upto, entries, counts))
        if len(self._sections) > self._max_sections:
            self._join_pairs()

    def _join_pairs(self) -> None:
        """Join sections in pairs; further sections are twice as long."""
        self._size *= 2
        for first, second in zip(self._sections[0::2], self._sections[1::2], strict=False):
            second.entries += first.entries
            first.counts.merge(second.counts)
            second.counts = first.counts
        last = self._sections[-1:] if len(self._sections) % 2 else []
        self._sections = self._sections[1::2] + last
        self._index, self._reread = 0, None
