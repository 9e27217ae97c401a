"""Exactly once: each chunk is one transaction with its mark in the ledger (ledger.py).

    → WATCH head marks   HMGET head …   HLEN marks   ECHO      is everything as this task knows it?
    → MULTI   XADD …   XTRIM   HSET marks …                    meanwhile the server queues the chunk
    ← the answers to the first line
    → EXEC   ECHO                                              and the next chunk's first two lines behind it
    ← the ids, or nil where head or marks have changed since WATCH

That is the fast way, for rows that are simply to be written. Whatever does not go that way (marks of a twin, rows that
an earlier run has written, explicit ids, an error, a lost connection) is *resolved*: slowly, one chunk at a time, from
what the server says. The outcome of an EXEC that nobody heard of is in the marks.

A task that finds marks of its own partition when it begins is a retry. It writes nothing until it has met all rows that
are marked: what it cannot write yet is held, beyond 64 MB in a file. Should it end without having met them, its
rows are not those of the attempt before, and it has written nothing.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, TypeVar

import hiredis
import numpy as np

from spark_streams.errors import LedgerError, RStreamError, ServerUnreachableError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.sink.books import Book, Books
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.fingerprint import Hashes, Mask, Multiset
from spark_streams.sink.ledger import Command, expiry, pack_mark
from spark_streams.sink.rows import error_of_row, first_not_above, id_refused
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import Reply, ReplyError, pack
from spark_streams.wire.encode import Requests
from spark_streams.wire.link import Link
from spark_streams.wire.replies import pairs
from spark_streams.wire.retry import passes, wants_new_connection

_HELD_IN_MEMORY = 64 << 20
_NOTHING: Hashes = np.empty(0, np.uint64)
_QUEUED = b"+QUEUED\r\n"
T = TypeVar("T")


@dataclass
class _Write:
    """A chunk on its way, with the name of its marks and the books of its segments."""

    chunk: Chunk
    mark: bytes
    books: Sequence[Book]
    commands: int = 0  # between MULTI and EXEC

    def expected(self) -> bytes:
        """The answers to its questions while nothing has changed."""
        return b"+OK\r\n" + b"".join([book.expected() for book in self.books])


def _went_well(one: _Write, replies: bytes) -> bool:
    """Whether all commands were queued, and EXEC has carried them out without an error."""
    head = len(b"+OK\r\n") + len(_QUEUED) * one.commands
    return replies.startswith(b"*%d\r\n" % one.commands, head) and replies.find(b"\n-", head) < 0


def _parts(chunk: Chunk, books: Sequence[Book]) -> Iterator[tuple[Book, int, int, Hashes]]:
    """(book, start, stop, fingerprints) of each segment."""
    assert chunk.hashes is not None
    for book, (_, start, stop) in zip(books, chunk.segments(), strict=True):
        yield book, start, stop, chunk.hashes[start:stop]


class LedgerSender:
    """Sends chunks over a link, each at most once, whoever else sends the same."""

    def __init__(self, link: Link, trimmer: Trimmer, books: Books) -> None:
        self._link = link
        self._trimmer = trimmer
        self._books = books
        self._ahead: _Write | None = None  # queued behind MULTI, waiting for its EXEC
        self._numbered = 0

    def run(self, chunks: Iterable[Chunk]) -> int:
        """Send all that is not written yet; how many rows there were.

        Raises LedgerError where what is written already cannot be proved to be these rows, and the named error of a
        row that the server refuses.
        """
        rows = 0
        with _Held() as held:
            for chunk in chunks:
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
        return rows

    # -- before writing -----------------------------------------------------------------------------------------

    def _open(self, chunk: Chunk) -> None:
        segments = chunk.segments()
        books = self._books.of([stream for stream, _, _ in segments])
        if not all(book.opened for book in books):
            self._flush()
            self._asking(lambda: self._books.open(books, self._ask))
        for book, _, _, hashes in self._parts(chunk):
            book.count(hashes)

    def _is_retry(self, chunk: Chunk) -> bool:
        return any(len(book.others) for book in self._books.of([stream for stream, _, _ in chunk.segments()]))

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
            if len(book.others) and not book.done:
                raise LedgerError(
                    f"partition {self._books.partition} of batch {self._books.batch.number} wrote {len(book.others)} "
                    f"rows to stream {book.stream.decode('utf-8', 'replace')!r} in an earlier attempt that this one "
                    "does not have: the query gives other rows each time it runs (rand(), uuid(), current time, an "
                    "unordered limit); make it repeatable, or choose delivery=at-least-once"
                )

    def _parts(self, chunk: Chunk) -> Iterator[tuple[Book, int, int, Hashes]]:
        return _parts(chunk, self._books.of([stream for stream, _, _ in chunk.segments()]))

    # -- the fast way -------------------------------------------------------------------------------------------

    def _push(self, chunk: Chunk) -> None:
        books = self._books.of([stream for stream, _, _ in chunk.segments()])
        if all(book.done for book in books):
            return
        self._numbered += 1
        one = _Write(chunk, f"{self._books.attempt}.{self._numbered}".encode(), books)
        if chunk.ids is not None or not all(book.settled for book in books):
            self._flush()
            self._resolve(one)
            return
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._execute(ahead, one)
            return
        try:
            self._link.pipe.send(*self._queued(one))
            self._ahead = one
        except ServerUnreachableError as error:
            self._link.again(error)
            self._resolve(one)

    def _flush(self) -> None:
        """Finish the chunk that waits for its EXEC."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._execute(ahead, None)

    def _execute(self, one: _Write, following: _Write | None) -> None:
        """EXEC the chunk that is queued, and queue the following one, which is ahead then. If anything is not as
        expected, both are resolved."""
        pipe = self._link.pipe
        carried_out = False
        try:
            if pipe.take() == one.expected():
                for book in one.books:
                    book.seen.add(one.mark)  # what the questions for the following chunk are to be answered with
                pipe.send(pack("EXEC"), pipe.mark, *(self._queued(following) if following is not None else ()))
                replies = pipe.take()
                if _went_well(one, replies):
                    self._written(one, None)
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
                    carried_out = self._is_carried_out(one, one.chunk, None, replies)
            else:
                pipe.send(pack("DISCARD"), pipe.mark)
                pipe.take()
        except ServerUnreachableError as error:
            for book in one.books:
                book.seen.discard(one.mark)  # nobody knows
            self._link.again(error)
        if not carried_out:
            self._resolve(one)
        if following is not None:
            self._resolve(following)

    def _written(self, one: _Write, claimed: Mask | None) -> None:
        """The mark is there, and the rows are."""
        for book, start, stop, hashes in _parts(one.chunk, one.books):
            self._books.made(book, one.mark, hashes)
            if claimed is not None:
                claims = hashes[claimed[start:stop]]
                book.earlier.remove(claims)
                book.claims_read += 8 * len(claims)  # they were watched: nobody else's are between
        if claimed is None:
            self._finished(one)

    def _queued(self, one: _Write) -> list[bytes | memoryview]:
        """The first two lines of the drawing above."""
        watched = [key for book in one.books for key in book.watched()]
        questions = [pack(*question) for book in one.books for question in book.questions()]
        first = b"".join([pack("WATCH", *watched), *questions, self._link.pipe.mark, pack("MULTI")])
        chunk = one.chunk
        trims = self._trimmer.commands([book.stream for book in one.books])
        marks = [pack(*command) for command in self._marks(one, None)]
        one.commands = len(chunk) + len(trims) + len(marks)
        return [first, chunk.requests.slice(0, len(chunk)), b"".join([*trims, *marks])]

    def _marks(self, one: _Write, claimed: Mask | None) -> list[Command]:
        """The commands that mark the chunk's rows as written, or as claimed."""
        commands: list[Command] = []
        for book, start, stop, hashes in _parts(one.chunk, one.books):
            claims = hashes[claimed[start:stop]] if claimed is not None else _NOTHING
            written = hashes[~claimed[start:stop]] if claimed is not None else hashes
            commands.append(("HSET", book.marks, one.mark, pack_mark(written, claims)))
            names = [book.marks]
            if len(claims):
                names.append(book.keys.part("claims"))
                commands.append(("APPEND", names[-1], claims.astype("<u8").tobytes()))
            if not book.marked or len(claims):
                commands.append(("SADD", book.keys.parts, *[name[len(book.keys.head) + 1 :] for name in names]))
            commands += expiry(self._books.batch, book.keys.head, book.keys.parts, *names)
        return commands

    def _finished(self, one: _Write) -> None:
        self._books.forget(one.mark)
        self._link.backoff.succeeded()
        self._trimmer.after([book.stream for book in one.books])

    # -- the slow way -------------------------------------------------------------------------------------------

    def _resolve(self, one: _Write) -> None:
        """Write what is not written yet of this chunk, whatever has happened to it so far."""
        while not self._asking(lambda: self._try(one)):
            pass
        self._finished(one)

    def _asking(self, attempt: Callable[[], T]) -> T:
        """Until it comes through: the server's passing errors and lost connections are waited out."""
        while True:
            try:
                return attempt()
            except ReplyError as error:
                text = str(error)
                if not passes(text):
                    raise self._link.server.error_of(error, ("EXEC", "(the sink's ledger)")) from None
                if wants_new_connection(text):
                    self._link.close()
                self._link.wait(text)
            except RStreamError as error:
                self._link.again(error)

    def _ask(self, commands: Sequence[Command]) -> list[Reply]:
        return self._link.server.pipeline(commands)

    def _try(self, one: _Write) -> bool:
        """One attempt; whether the chunk is done. Raises a ReplyError or ServerUnreachableError where it may be tried
        again: the mark tells the next attempt what this one has done."""
        books, chunk = one.books, one.chunk
        explicit = [book.stream for book in books] if chunk.ids is not None else []
        replies = self._ask([
            ("WATCH", *[key for book in books for key in book.watched()], *explicit),
            *[question for book in books for question in book.questions()],
            *[("XINFO", "STREAM", stream) for stream in explicit],
        ])  # fmt: skip
        asked = replies[1 : 1 + 2 * len(books)]
        for reply in [replies[0], *asked]:
            if isinstance(reply, ReplyError):
                raise reply
        self._books.look_again(books, asked[0::2], asked[1::2], self._ask)
        wanted = np.zeros(len(chunk), np.bool_)
        claimed = np.zeros(len(chunk), np.bool_)
        met: list[tuple[Book, Hashes]] = []
        for book, start, stop, hashes in _parts(chunk, books):
            own = self._books.own(book, one.mark)
            if own is not None:
                written = Multiset()
                written.add(own)
                met.append((book, hashes[~written.matching(hashes)]))
            elif not book.done:
                known = book.others.matching(hashes)
                met.append((book, hashes[known]))
                wanted[start:stop] = ~known
                places = start + np.flatnonzero(~known)
                claimed[places] = book.earlier.matching(hashes[~known])
        if not wanted.any():
            self._ask([("UNWATCH",)])
        else:
            rest = chunk.where(wanted)
            part = _Write(rest, one.mark, self._books.of([stream for stream, _, _ in rest.segments()]))
            tops = dict(zip(explicit, replies[1 + 2 * len(books) :], strict=True))
            if not self._write(part, claimed[wanted], tops):
                return False
        for book, hashes in met:
            book.others.remove(hashes)
        return True

    def _write(self, one: _Write, claimed: Mask, tops: Mapping[bytes, Reply]) -> bool:
        """MULTI … EXEC of these rows; False where something has changed since WATCH."""
        fresh = one.chunk.where(~claimed)
        self._check_ids(fresh, tops)
        trims = self._trimmer.commands([stream for stream, _, _ in fresh.segments()])
        marks = self._marks(one, claimed)
        pipe = self._link.pipe
        last = b"".join([*trims, *[pack(*mark) for mark in marks], pack("EXEC"), pipe.mark])
        pipe.send(pack("MULTI"), fresh.requests.slice(0, len(fresh)), last)
        return self._is_carried_out(one, fresh, claimed, pipe.take())

    def _is_carried_out(self, one: _Write, fresh: Chunk, claimed: Mask | None, raw: bytes) -> bool:
        """What the replies to MULTI … EXEC say: carried out, or not (nil). fresh: the rows that were sent.

        Raises ReplyError where the server gave it up, the error of the first row that was refused inside it.
        """
        reader = hiredis.Reader(replyError=ReplyError)
        reader.feed(raw)
        replies: list[Reply] = []
        while (reply := reader.gets()) is not False:
            replies.append(reply)
        results = replies[-1]
        if isinstance(results, ReplyError):
            raise next(reply for reply in replies if isinstance(reply, ReplyError))
        if results is None:
            return False
        refused = {at: str(reply) for at, reply in enumerate(results) if isinstance(reply, ReplyError)}
        if refused:
            self._take_back(one, fresh, claimed, refused)
        self._written(one, claimed)
        return True

    def _take_back(self, one: _Write, fresh: Chunk, claimed: Mask | None, refused: dict[int, str]) -> None:
        """Rows were refused inside the transaction, which does not undo the mark: mark only what was written. Raises
        the error of the first one."""
        keep = np.ones(len(one.chunk), np.bool_)
        claims = np.zeros(len(one.chunk), np.bool_) if claimed is None else claimed
        keep[np.flatnonzero(~claims)[[at for at in refused if at < len(fresh)]]] = False
        corrections: list[Command] = []
        for book, start, stop, hashes in _parts(one.chunk, one.books):
            here = slice(start, stop)
            mark = pack_mark(hashes[~claims[here] & keep[here]], hashes[claims[here]])
            corrections.append(("HSET", book.marks, one.mark, mark))
        self._asking(lambda: self._ask([("MULTI",), *corrections, ("EXEC",)]))
        at, text = next(iter(refused.items()))
        if at < len(fresh):
            raise error_of_row(self._link.server, fresh, at, text)
        raise self._link.server.error_of(ReplyError(text), ("XTRIM", one.books[0].stream))

    def _check_ids(self, fresh: Chunk, tops: Mapping[bytes, Reply]) -> None:
        """Explicit ids must rise above the top of their stream, which is watched. Raises EntryIdError."""
        if fresh.ids is None:
            return
        for stream, start, stop in fresh.segments():
            described = tops[stream]
            top = StreamId.parse(pairs(described)[b"last-generated-id"]) if isinstance(described, list) else MIN_ID
            at = first_not_above(fresh.ids.slice(start, stop - start), top)
            if at is not None:
                explicit = fresh.ids[start + at].as_py()
                raise id_refused(self._link.server, stream, int(fresh.rows[start + at]), explicit)


class _Held(contextlib.AbstractContextManager["_Held"]):
    """Chunks that may not be written yet, in their order; their bytes go to a file where they are many."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._bytes: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_HELD_IN_MEMORY)  # noqa: SIM115 - it is closed below

    def __exit__(self, *_: object) -> None:
        self._bytes.close()

    @property
    def waiting(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: Chunk) -> None:
        self._bytes.write(chunk.requests.slice(0, len(chunk)))
        offsets = chunk.requests.offsets - chunk.requests.offsets[0]
        self._chunks.append(replace(chunk, requests=Requests(memoryview(b""), offsets)))

    def release(self) -> Iterator[Chunk]:
        """Hand all of them out."""
        held, self._chunks = self._chunks, []
        if held:
            self._bytes.seek(0)
        for chunk in held:
            data = memoryview(self._bytes.read(int(chunk.requests.offsets[-1])))
            yield replace(chunk, requests=Requests(data, chunk.requests.offsets))
        if held:
            self._bytes.seek(0)
            self._bytes.truncate()
