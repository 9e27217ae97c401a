"""Dead letters a page at a time, within bounds that were fixed before; memory does not depend on their number."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from spark_streams.deadletter.criteria import Criteria
from spark_streams.deadletter.limits import DEAD_LETTER_LIMITS, DeadLetterLimits
from spark_streams.deadletter.page import DeadLetterPage
from spark_streams.errors import ServerReplyError
from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.wire.connection.connection import ReplyError, ReplyTooLargeError, pack
from spark_streams.wire.connection.page_sizer import PageSizer
from spark_streams.wire.connection.server import Server
from spark_streams.wire.entries.decode import decode_entries
from spark_streams.wire.entries.lines import Index
from spark_streams.wire.replies.replies import milliseconds
from spark_streams.wire.replies.xinfo import read_stream_state
from spark_streams.wire.session import Session

T = TypeVar("T")

FIRST_LOOK = 20  # streams whose first entries are asked for at once; how large these are shows how many more


@dataclass(frozen=True)
class Extent:
    """Which part of a stream is looked at, both ids included; length: entries of the whole stream."""

    first: StreamId
    last: StreamId
    length: int


def extent(server: Server, stream: str | bytes, criteria: Criteria) -> Extent:
    """The range that is meant, ending at the stream's last id of this moment: what comes later is not in it.

    Raises ServerReplyError where there is no such stream, WrongKeyTypeError, ServerError.
    """
    clock, info = server.pipeline([("TIME",), ("XINFO", "STREAM", stream)])
    state = read_stream_state(server, stream, info)
    if not state.exists:
        raise ServerReplyError(
            f"there is no stream {stream!r} at {server.address}; rstream dead list shows those with dead letters"
        )
    if isinstance(clock, ReplyError):
        raise server.error_of(clock, ("TIME",))
    first, last = criteria.range(milliseconds(clock))
    return Extent(first, min(last, state.last), state.length)


class PageSize:
    """How many dead letters to ask for: near so many bytes of them, and no more than are wanted. first: at first."""

    def __init__(self, limits: DeadLetterLimits = DEAD_LETTER_LIMITS, first: int | None = None) -> None:
        self.limits = limits
        first = limits.first_page if first is None else first
        self._sizer = PageSizer(first, limits.largest_page, limits.page_bytes)
        self._share = 1.0  # of the dead letters that were read, those that were meant

    def next(self, wanted: int | None = None) -> int:
        """wanted: dead letters that can be used."""
        if wanted is None:
            return self._sizer.size
        return max(1, min(self._sizer.size, int(wanted / max(self._share, 1e-3)) + 1 if self._share < 1 else wanted))

    def learn(self, read: int, size: int, meant: int) -> None:
        """A page of `read` dead letters had so many bytes, and so many dead letters were meant."""
        if read:
            self._sizer.learn(read, size)
            self._share = meant / read

    def too_large(self) -> bool:
        """A page was too large to be held; False where it cannot be smaller."""
        smaller = self._sizer.size > 1
        self._sizer.too_large()
        return smaller


def pages_of(names: Sequence[T], size: PageSize) -> Iterator[Sequence[T]]:
    """So many at a time as `size` says then: whoever asks for their entries tells it how large these were."""
    start = 0
    while start < len(names):
        page = names[start : start + size.next()]
        yield page
        start += len(page)


def read_page(
    server: Server, stream: str | bytes, first: StreamId, last: StreamId, size: PageSize, wanted: int | None = None
) -> tuple[DeadLetterPage, int]:
    """(the page from `first` on, bytes of the reply). wanted: dead letters that can be used. Raises ReplyTooLargeError,
    ServerError."""
    count = size.next(wanted)
    command = ("XRANGE", stream, bytes(first), bytes(last), "COUNT", count)
    there = server.of(stream)
    there.request(pack(*command))
    reply = there.receive(None if count == 1 else size.limits.most_bytes)
    if bytes(reply[:1]) == b"-":
        error = ReplyError(bytes(reply[1:500]).decode("utf-8", "replace").strip())
        raise there.error_of(error, command)
    return DeadLetterPage(decode_entries(reply)), len(reply)


def _read_next(
    stream: str | bytes, first: StreamId, last: StreamId, size: PageSize, server: Server
) -> tuple[DeadLetterPage, int]:
    return read_page(server, stream, first, last, size)


def dead_letter_pages(
    session: Session,
    stream: str | bytes,
    within: Extent,
    criteria: Criteria,
    limits: DeadLetterLimits = DEAD_LETTER_LIMITS,
) -> Iterator[tuple[DeadLetterPage, Index]]:
    """Page after page, with the dead letters that are meant; a page that holds none, too. Raises ServerError."""
    size = PageSize(limits)
    first: StreamId | None = within.first
    while first is not None and first <= within.last:
        read = functools.partial(_read_next, stream, first, within.last, size)
        page, received = run_with_smaller_pages(session, size, read)
        if not page.count:
            return
        rows: Index = np.flatnonzero(criteria.mask(page) & page.are_dead_letters())
        yield page, rows
        size.learn(page.count, received, len(rows))
        first = following(page.ids[page.count - 1].as_py())


def following(entry: bytes) -> StreamId | None:
    """The next id; None where there is none."""
    parsed = StreamId.parse(entry)
    return None if parsed == MAX_ID else parsed.next()


def run_with_smaller_pages(session: Session, size: PageSize, step: Callable[[Server], T]) -> T:
    """Run a step that reads a page of this size; again with a smaller one where that was too large to be held. Raises
    ServerError."""
    while True:
        try:
            return session.run(step)
        except ReplyTooLargeError:
            session.close()
            size.too_large()
