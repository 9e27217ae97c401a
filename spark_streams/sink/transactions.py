"""Exactly once: each chunk is one transaction with its mark in the ledger (ledger.py).

    → WATCH head marks   HMGET head …   HLEN marks   ECHO      is everything as this task knows it?
    → MULTI   XADD …   XTRIM   HSET marks …                    meanwhile the server queues the chunk
    ← the answers to the first line
    → EXEC   ECHO                                              and the next chunk's first two lines behind it
    ← the ids, or nil where head or marks have changed since WATCH

That is the fast way, for rows that are simply to be written. Whatever does not go that way (marks of a twin, rows that
an earlier run has written, explicit ids, an error, a lost connection) is resolved, slowly and one chunk at a time
(resolving.py).

A task that finds marks of its own partition when it begins is a retry. It writes nothing until it has met all rows that
are marked: what it cannot write yet is held, beyond 64 MB in a file. Should it end without having met them, its
rows are not those of the attempt before, and it has written nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from spark_streams.errors import ServerUnreachableError
from spark_streams.sink import refusals
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.covering import Covering
from spark_streams.sink.fingerprint import Hashes, Multiset
from spark_streams.sink.held import Held
from spark_streams.sink.ledger_view import LedgerView, LedgerViews, checked
from spark_streams.sink.limits import Limits
from spark_streams.sink.opening import open_books
from spark_streams.sink.resolving import Resolver, Write, parts_of
from spark_streams.sink.rows import with_known_tops
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import ReplyError, pack
from spark_streams.wire.session import Session

_QUEUED = b"+QUEUED\r\n"


class LedgerSender:
    """Sends chunks over a session, each at most once, whoever else sends the same."""

    def __init__(
        self, session: Session, trimmer: Trimmer, books: LedgerViews, limits: Limits, replicas: int | None = None
    ) -> None:
        """replicas: as Covering's."""
        self._session = session
        self._trimmer = trimmer
        self._books = books
        self._limits = limits
        self._slow = Resolver(session, trimmer, books, limits)
        self._covering = Covering(session, books, self._slow, replicas)
        self._ahead: Write | None = None  # queued behind MULTI, waiting for its EXEC
        self._numbered = 0

    def run(self, chunks: Iterable[Chunk]) -> int:
        """Send all that is not written yet; how many rows there were.

        Raises LedgerError where what is written already cannot be proved to be these rows, or is lost, the named error
        of a row that the server refuses, ReplicationError.
        """
        rows = 0
        with Held() as held:
            for chunk in self._limits.fitting(chunks):
                rows += len(chunk)
                self._open(chunk)
                left = self._without_known(chunk) if held.waiting or self._is_retry(chunk) else chunk
                if left is not chunk and self._unmet():
                    held.add(left)
                    continue
                for one in held.release():
                    self._push(one)
                self._push(left)
            self._flush()
            self._require_all_met()
            for one in held.release():
                self._push(one)
            self._flush()
            self._require_all_met()
            self._covering.cover(at_the_end=True)
        return rows

    # -- before writing -----------------------------------------------------------------------------------------

    def _open(self, chunk: Chunk) -> None:
        segments = chunk.segments()
        books = self._books.of([stream for stream, _, _ in segments])
        if not all(book.opened for book in books):
            self._flush()
            self._slow.asking(lambda: open_books(self._books, books, self._slow.ask))
            self._covering.begin()
            for book in books:
                if book.kind not in (b"none", b"stream"):
                    raise self._session.get().not_a_stream(book.stream, "XADD")
        for book, _, _, hashes in self._parts(chunk):
            book.count(hashes)

    def _is_retry(self, chunk: Chunk) -> bool:
        return any(len(book.others) for book in self._books.of(chunk.stream_names()))

    def _unmet(self) -> int:
        return sum(len(book.others) for book in self._books.all() if not book.done)

    def _without_known(self, chunk: Chunk) -> Chunk:
        """Without the rows that other attempts have written; they count as met."""
        wanted = np.ones(len(chunk), np.bool_)
        for book, start, stop, hashes in self._parts(chunk):
            known = book.others.matching(hashes)
            book.others.remove(hashes[known])
            wanted[start:stop] = ~known
        return chunk.where(wanted) if not wanted.all() else replace(chunk)

    def _require_all_met(self) -> None:
        for book in self._books.all():
            unmet = 0 if book.done else len(book.others)
            if not unmet:
                continue
            if not self._is_lossy():
                raise refusals.other_attempt(self._books.batch, book.shown, self._books.partition, unmet)
            book.others = Multiset()

    def _is_lossy(self) -> bool:
        """Whether the source says that it has fewer entries than an earlier attempt had."""
        batch = self._books.batch
        return batch.is_named_by(self._slow.asking(lambda: checked(self._slow.ask([("GET", batch.lossy)])))[0])

    def _parts(self, chunk: Chunk) -> Iterator[tuple[LedgerView, int, int, Hashes]]:
        return parts_of(chunk, self._books.of(chunk.stream_names()))

    # -- the fast way -------------------------------------------------------------------------------------------

    def _push(self, chunk: Chunk) -> None:
        for piece in with_known_tops(chunk):
            self._push_piece(piece)

    def _push_piece(self, chunk: Chunk) -> None:
        books = self._books.of(chunk.stream_names())
        if all(book.done for book in books):
            return
        if self._covering.is_due:
            self._flush()
            self._covering.cover()
        self._numbered += 1
        one = Write(chunk, f"{self._books.attempt}.{self._numbered}".encode(), books)
        self._covering.add(one)
        if chunk.ids is not None or not all(book.settled for book in books):
            self._flush()
            self._slow.resolve(one)
            return
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._execute(ahead, one)
            return
        try:
            self._session.pipe.send(*self._queued(one))
            self._ahead = one
        except ServerUnreachableError as error:
            self._session.again(error)
            self._slow.resolve(one)

    def _flush(self) -> None:
        """Finish the chunk that waits for its EXEC."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._execute(ahead, None)

    def _execute(self, one: Write, following: Write | None) -> None:
        """EXEC the chunk that is queued, and queue the following one, which is ahead then. If anything is not as
        expected, both are resolved."""
        pipe = self._session.pipe
        carried_out = False
        try:
            if pipe.take() == one.expected():
                for book in one.books:
                    book.seen.add(one.mark)  # what the questions for the following chunk are to be answered with
                pipe.send(pack("EXEC"), pipe.mark, *(self._queued(following) if following is not None else ()))
                replies = pipe.take()
                if _went_well(one, replies):
                    self._slow.written(one, None)
                    self._ahead = following
                    return
                for book in one.books:
                    book.seen.discard(one.mark)
                if following is not None:
                    pipe.take()
                    pipe.send(pack("DISCARD"), pipe.mark)
                    pipe.take()
                # Nothing is under way any more: rows that were refused can be taken back from the mark.
                with contextlib.suppress(ReplyError):  # given up by the server as a whole: resolved below
                    carried_out = self._slow.is_carried_out(one, one.chunk, None, replies)
            else:
                pipe.send(pack("DISCARD"), pipe.mark)
                pipe.take()
        except ServerUnreachableError as error:
            for book in one.books:
                book.seen.discard(one.mark)  # nobody knows
            self._session.again(error)
        if not carried_out:
            self._slow.resolve(one)
        if following is not None:
            self._slow.resolve(following)

    def _queued(self, one: Write) -> list[bytes | memoryview]:
        """The first two lines of the drawing above."""
        watched = [key for book in one.books for key in book.watched()]
        questions = [pack(*question) for book in one.books for question in book.questions()]
        first = b"".join([pack("WATCH", *watched), *questions, self._session.pipe.mark, pack("MULTI")])
        chunk = one.chunk
        trims = self._trimmer.commands([book.stream for book in one.books])
        marks = [pack(*command) for command in self._slow.marks(one, None)]
        one.commands = len(chunk) + len(trims) + len(marks)
        return [first, chunk.requests.slice(0, len(chunk)), b"".join([*trims, *marks])]


def _went_well(one: Write, replies: bytes) -> bool:
    """Whether all commands were queued, and EXEC has carried them out without an error."""
    head = len(b"+OK\r\n") + len(_QUEUED) * one.commands
    return replies.startswith(b"*%d\r\n" % one.commands, head) and replies.find(b"\n-", head) < 0
