"""Copies of an entry that name it: dead letters, entries that wait for a retry, returned entries, sent-back entries.

    dl.stream = orders, dl.id = 5-0      in a dead-letter stream, rstream:retry:… or rstream:returned:…
    dl.previous = orders:dead/7-0        a dead letter of what the dead letter 7-0 was sent back as
    dl.redriven = 1 … orders:dead/7-0    an entry that the dead letter 7-0 was sent back as

Streams are read page by page as `rstream dead` reads them, up to a number of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.base.printable import name_text
from spark_streams.connector.deadletter.envelope import MARK, RedriveMark, raw, text
from spark_streams.connector.deadletter.letter_page import Criteria, DeadLetterPage
from spark_streams.connector.deadletter.page_reader import Extent, dead_letter_pages
from spark_streams.connector.deadletter.transform import dead_letters_of
from spark_streams.connector.wire.entries.lines import Mask
from spark_streams.connector.wire.replies.xinfo import stream_states
from spark_streams.connector.wire.session import Session

Matches = Callable[[DeadLetterPage], Mask]


@dataclass(frozen=True)
class Copy:
    """stream, id: where it is; pairs: its own fields; envelope: names without `dl.`; mark: of a sent-back entry."""

    stream: bytes
    id: StreamId
    pairs: tuple[tuple[bytes, bytes], ...]
    envelope: Mapping[str, str]
    mark: RedriveMark | None = None


@dataclass(frozen=True)
class Found:
    """searched: streams that were read; unread: why a copy may be missing, "" if all were read to their end."""

    copies: tuple[Copy, ...] = ()
    searched: tuple[bytes, ...] = ()
    unread: str = ""


def of_entry(stream: bytes, entry: StreamId) -> Matches:
    """Select copies of an entry."""
    return lambda page: _equals(page, "stream", stream) & _equals(page, "id", bytes(entry))


def of_dead_letter(stream: bytes, entry: StreamId) -> Matches:
    """Select what a dead letter was sent back as."""
    previous = stream + b"/" + bytes(entry)

    def matches(page: DeadLetterPage) -> Mask:
        marks = pc.fill_null(page.field(MARK), b"")
        ends = pc.ends_with(marks, b" " + previous).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(ends)
        parsed = [RedriveMark.parse(marks[row].as_py()) for row in rows.tolist()]
        ends[rows] = [mark is not None and raw(mark.previous) == previous for mark in parsed]
        return np.asarray(ends, np.bool_)

    return matches


def find_copies(session: Session, streams: Iterable[bytes], matches: Matches, limit: int) -> Found:
    """Return the entries of these streams that match. limit: of entries that are read of each stream. Raises
    ServerError."""
    names = list(dict.fromkeys(streams))
    states = session.run(lambda server: stream_states(server, names))
    copies: list[Copy] = []
    cut: list[bytes] = []
    for name, state in states.items():
        read = 0
        for page, _ in dead_letter_pages(session, name, Extent(MIN_ID, state.last, state.length, Criteria())):
            copies += _copies(name, page, matches(page))
            read += page.count
            if limit <= read < state.length:
                cut.append(name)
                break
    unread = f"only the first entries of {', '.join(map(name_text, cut))} were read; raise --limit" if cut else ""
    return Found(tuple(copies), tuple(names), unread)


def _equals(page: DeadLetterPage, name: str, value: bytes) -> Mask:
    same = pc.fill_null(pc.equal(page.envelope_column(name), value), False)
    return np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)


def _copies(stream: bytes, page: DeadLetterPage, mask: Mask) -> Sequence[Copy]:
    copies = []
    for letter in dead_letters_of(page, np.flatnonzero(mask)):
        pairs = [(raw(name), raw(value)) for name, value in letter.pairs]
        mark = RedriveMark.parse(pairs[-1][1]) if pairs and pairs[-1][0] == MARK else None
        own = pairs if mark is None else pairs[:-1]
        copies.append(Copy(stream, StreamId.parse(letter.id), tuple(own), letter.envelope, mark))
    return copies


def name_of(copy: Copy) -> str:
    """Return stream and ID of a copy as the envelope's `dl.previous` writes them."""
    return f"{text(copy.stream)}/{copy.id}"
