"""Count and list dead letters: by kind, by reason of a stream (updated incrementally), as lines of JSON.

ReasonCounts divides a stream into sections. For each section, the number of its entries when it was read is known, and
the number of dead letters by reason:

    present first entry         read up to here                  present last entry
           |--- section ---|--- section ---|--- section ---|.......... new ..|

IDs only grow, so new entries are always at the end. Entries are removed from the front or from the middle. The stream's
length shows whether entries were removed: then the sections have more entries than the stream. Sections that end before
the stream's first entry are dropped. Others are read again, from the front, until the sum is right. So only new entries
are read, and as few others as possible.

    {"id": "1732097-0", "envelope": {"stream": "orders", "reason": "decode", …}, "fields": {"amount": "n/a", …}}

In JSON, a text that is not UTF-8 (a name or a value) is {"base64": "…"}. If a name is not UTF-8 or occurs twice,
`fields` is a list of [name, value] instead of an object.
"""

from __future__ import annotations

import base64
import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.base.printable import json_text, name_text
from spark_streams.connector.deadletter import letter_page, post
from spark_streams.connector.deadletter.envelope import names_origin, raw, text
from spark_streams.connector.deadletter.transform import DeadLetter
from spark_streams.connector.deadletter.waiting_entries import WaitingEntries, waiting_entries
from spark_streams.connector.keys import read_retry_stream
from spark_streams.connector.operator_commands import command_on
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.lines import Index
from spark_streams.connector.wire.replies import is_wrong_type
from spark_streams.connector.wire.scan import list_streams
from spark_streams.connector.wire.session import Session

OTHER_KINDS = "(others)"

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
            kind = (OTHER_KINDS,) * len(kind)
        have = self.counts.setdefault(kind, KindCount(0, first, last))
        have.letters += number
        have.last = last

    def merge(self, other: KindCounts) -> None:
        """Add the counts of later dead letters."""
        for kind, count in other.counts.items():
            self._count(kind, count.letters, count.first, count.last)

    @property
    def letters(self) -> int:
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


# -- of a server: its dead-letter streams, and their dead letters by kind or one by one --------------------------------

_LISTED = 10  # values in a message


@dataclass(frozen=True)
class DeadLetterStream:
    """A stream whose first or last entry is a dead letter."""

    stream: str  # printable name
    letters: int  # number of its entries
    oldest: str  # ID
    newest: str  # ID
    key: bytes  # its name in bytes

    def facts(self) -> dict[str, str | int]:
        return {"stream": self.stream, "letters": self.letters, "oldest": self.oldest, "newest": self.newest}


def fetch_streams(server: Server) -> tuple[list[DeadLetterStream], list[WaitingEntries]]:
    """Return (the dead-letter streams, the entries that wait for a retry), each by name. Raises ServerError."""
    names = list_streams(server)
    return dead_letter_streams(server, names), waiting_entries(server, names)


def dead_letter_streams(server: Server, names: Sequence[bytes]) -> list[DeadLetterStream]:
    """Return the dead-letter streams among these; entries that wait for a retry are not dead letters yet. Raises
    ServerError."""
    candidates = [name for name in names if read_retry_stream(name.decode("utf-8", "replace")) is None]
    streams: list[DeadLetterStream] = []
    size = post.PageSize(first=post.FIRST_STREAMS)
    for page in post.pages_of(candidates, size):
        commands: list[tuple[str | bytes | int, ...]] = []
        for name in page:
            commands += [
                ("XREVRANGE", name, "+", "-", "COUNT", 1), ("XRANGE", name, "-", "+", "COUNT", 1), ("XLEN", name)
            ]  # fmt: skip
        replies = server.execute_all(commands, is_wrong_type)
        received = 0
        for place, name in enumerate(page):
            last, first, length = replies[3 * place : 3 * place + 3]
            # Deleted, or of another type by now: not a dead-letter stream any more.
            if is_wrong_type(last) or is_wrong_type(first) or not last or not first:
                continue
            received += sum(map(len, last[0][1])) + sum(map(len, first[0][1]))
            if any(names_origin(entry[0][1]) for entry in (first, last)):
                shown = name_text(name)
                streams.append(DeadLetterStream(shown, length, text(first[0][0]), text(last[0][0]), name))
        size.learn(len(page), received, len(page))
    return streams


def count_by_kind(
    address: Address,
    stream: str | bytes,
    criteria: letter_page.Criteria,
    tell: Callable[[int, int], None] = lambda done, total: None,
    limits: post.DeadLetterLimits = post.DEAD_LETTER_LIMITS,
) -> KindCounts:
    """Count matching dead letters by (stream, stage, reason, error). tell: called with the number of entries read so
    far, and of all entries. Raises ServerError."""
    counts = KindCounts()
    done = 0
    with Session(address) as session:
        within = letter_page.extent(session.get(), stream, criteria)
        for page, rows in letter_page.dead_letter_pages(session, stream, within, limits):
            counts.add(page.ids, page.kind(), rows)
            done += page.count
            tell(done, within.length)
    return counts


def explain_no_match(stream: str, criteria: letter_page.Criteria, counts: KindCounts) -> str:
    """Return a sentence that says why no dead letter matches. counts: all dead letters of the stream, by KIND."""
    if not counts.letters:
        return f"{stream} holds no dead letters. To list streams with dead letters: rstream dead list"
    patterns_of = {
        "stream": criteria.streams, "stage": criteria.stages, "reason": criteria.reasons, "error": criteria.errors
    }  # fmt: skip
    for name, patterns in patterns_of.items():
        values: Counter[str] = Counter()
        for kind, count in counts:
            values[kind[letter_page.KIND.index(name)]] += count.letters
        if patterns and not any(letter_page.matches_value(name, patterns, value) for value in values):
            shown = " or ".join(map(repr, patterns))
            return f"no dead letter of {stream} has {name} {shown}. It has: {_listed(values)}"
    how = command_on(stream, "dead list")
    return f"none of the {counts.letters:,} dead letters of {stream} matches all criteria. To count them by kind: {how}"


def _listed(values: Counter[str]) -> str:
    named = [f"{value or '(none)'} ({count:,})" for value, count in values.most_common(_LISTED)]
    more = len(values) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")


def each_dead_letter(
    address: Address,
    stream: str,
    criteria: letter_page.Criteria,
    limit: int | None = None,
    limits: post.DeadLetterLimits = post.DEAD_LETTER_LIMITS,
) -> Iterator[DeadLetter]:
    """Yield matching dead letters with all their fields. Raises ServerError."""
    remaining = limit
    with Session(address) as session:
        within = letter_page.extent(session.get(), stream, criteria)
        for page, rows in letter_page.dead_letter_pages(session, stream, within, limits):
            selected = rows if remaining is None else rows[:remaining]
            yield from letter_page.dead_letters_of(page, selected)
            if remaining is not None:
                remaining -= len(selected)
                if not remaining:
                    return


def as_json(dead_letter: DeadLetter) -> dict[str, object]:
    return {
        "id": dead_letter.id,
        "envelope": {name: text_as_json(value) for name, value in dead_letter.envelope.items()},
        "fields": fields_as_json(dead_letter.pairs),
    }


def fields_as_json(pairs: Sequence[tuple[str, str]]) -> dict[str, object] | list[list[object]]:
    """Return `fields` of any entry. pairs: (name, value), bytes that are not UTF-8 as surrogate escapes."""
    shown = [(text_as_json(name), text_as_json(value)) for name, value in pairs]
    names = [name for name, _ in shown if isinstance(name, str)]
    plain = len(names) == len(shown) == len(set(names))
    return {str(name): value for name, value in shown} if plain else [list(pair) for pair in shown]


def as_line(dead_letter: DeadLetter) -> str:
    """Return the JSON object as one line, without a line end."""
    return json_text(as_json(dead_letter), separators=(",", ":"))


def text_as_json(value: str) -> str | dict[str, str]:
    """Return a text as JSON. value: bytes that are not UTF-8 as surrogate escapes."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(raw(value)).decode()}
    return value
