"""Read dead letters page by page, within a fixed range; memory does not depend on their number."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.deadletter.dead_letter_limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.connector.deadletter.letter_page import Criteria, DeadLetterPage
from spark_streams.connector.errors import StreamMissingError
from spark_streams.connector.wire.connection import PageSizer, ReplyError, ReplyTooLargeError, Server, pack
from spark_streams.connector.wire.entry_page import decode_entries
from spark_streams.connector.wire.lines import Index
from spark_streams.connector.wire.replies import is_no_such_key, milliseconds
from spark_streams.connector.wire.scan import hint_of_names, names_and_patterns
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import read_stream_state

T = TypeVar("T")

FIRST_STREAMS = 20  # streams whose first entries are read at once; their size decides about the next number


@dataclass(frozen=True)
class Extent:
    """Range of a stream."""

    first: StreamId  # included
    last: StreamId  # included
    length: int  # entries of the complete stream
    criteria: Criteria  # of dead letters; each stream is decided to be a name or a pattern


def extent(server: Server, stream: str | bytes, criteria: Criteria) -> Extent:
    """Return the range of the criteria, up to the stream's present last ID: later entries are not in it.

    Raises StreamMissingError, WrongKeyTypeError, ServerError.
    """
    clock, info = server.execute_all([("TIME",), ("XINFO", "STREAM", stream)], is_no_such_key)
    state = read_stream_state(server, stream, info)
    if not state.exists:
        name = stream if isinstance(stream, str) else stream.decode("utf-8", "backslashreplace")
        hint = hint_of_names(server, [name], "rstream dead list")
        raise StreamMissingError(f"no stream {name!r} at {server.address}; {hint}")
    first, last = criteria.range(milliseconds(clock))
    settled = replace(criteria, named=names_and_patterns(server, criteria.streams)) if criteria.streams else criteria
    return Extent(first, min(last, state.last), state.length, settled)


class PageSize:
    """Number of dead letters to read at a time: about page_bytes, and at most as many as can be used. first: of the
    first page."""

    def __init__(self, limits: DeadLetterLimits = DEAD_LETTER_LIMITS, first: int | None = None) -> None:
        self.limits = limits
        first = limits.first_page if first is None else first
        self._sizer = PageSizer(first, limits.largest_page, limits.page_bytes)
        self._share = 1.0  # of the dead letters that were read: those that match

    def next(self, limit: int | None = None) -> int:
        """Return the size of the next page. limit: dead letters that can be used."""
        if limit is None:
            return self._sizer.size
        return max(1, min(self._sizer.size, int(limit / max(self._share, 1e-3)) + 1 if self._share < 1 else limit))

    def learn(self, read: int, size: int, selected: int) -> None:
        """Learn from a page of `read` dead letters. size: its bytes; selected: dead letters that matched."""
        if read:
            self._sizer.learn(read, size)
            self._share = selected / read

    def too_large(self) -> bool:
        """Halve the size after a page that was too large. Return False if it cannot be smaller."""
        smaller = self._sizer.size > 1
        self._sizer.too_large()
        return smaller


def pages_of(names: Sequence[T], size: PageSize) -> Iterator[Sequence[T]]:
    """Yield names in pages of this size. The caller reports to `size` how large their entries were."""
    start = 0
    while start < len(names):
        page = names[start : start + size.next()]
        yield page
        start += len(page)


def read_page(
    server: Server, stream: str | bytes, first: StreamId, last: StreamId, size: PageSize, limit: int | None = None
) -> tuple[DeadLetterPage, int]:
    """Return (the page from `first` on, bytes of the reply). limit: dead letters that can be used. Raises
    ReplyTooLargeError, ServerError."""
    reply = request_page(server, stream, first, last, size.next(limit), size.limits.max_bytes)
    return DeadLetterPage(decode_entries(reply)), len(reply)


def request_page(
    server: Server, stream: str | bytes, first: StreamId, last: StreamId, count: int, max_bytes: int
) -> memoryview:
    """Return the reply to XRANGE. max_bytes: of the reply, unless it is a single entry. Raises ReplyTooLargeError,
    ServerError."""
    command = ("XRANGE", stream, bytes(first), bytes(last), "COUNT", count)
    node = server.connection_for(stream)
    node.request(pack(*command))
    reply = node.receive(None if count == 1 else max_bytes)
    if bytes(reply[:1]) == b"-":
        error = ReplyError(bytes(reply[1:500]).decode("utf-8", "replace").strip())
        raise node.error_of(error, command)
    return reply


def _read_next(
    stream: str | bytes, first: StreamId, last: StreamId, size: PageSize, server: Server
) -> tuple[DeadLetterPage, int]:
    return read_page(server, stream, first, last, size)


def dead_letter_pages(
    session: Session,
    stream: str | bytes,
    within: Extent,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> Iterator[tuple[DeadLetterPage, Index]]:
    """Yield all pages with the rows of matching dead letters, also pages without any. Raises ServerError."""
    size = PageSize(limits)
    first: StreamId | None = within.first
    while first is not None and first <= within.last:
        read = functools.partial(_read_next, stream, first, within.last, size)
        page, received = run_with_smaller_pages(session, size, read)
        if not page.count:
            return
        rows: Index = np.flatnonzero(within.criteria.mask(page) & page.are_dead_letters())
        yield page, rows
        size.learn(page.count, received, len(rows))
        first = following(page.ids[page.count - 1].as_py())


def following(entry: bytes) -> StreamId | None:
    """Return the next ID; None if there is none."""
    parsed = StreamId.parse(entry)
    return None if parsed == MAX_ID else parsed.next()


def run_with_smaller_pages(session: Session, size: PageSize, step: Callable[[Server], T]) -> T:
    """Run a step that reads a page of this size. If the page was too large, run it again with a smaller one. Raises
    ServerError."""
    while True:
        try:
            return session.run(step)
        except ReplyTooLargeError:
            session.close()
            size.too_large()
