"""The slow way to write a chunk once: whatever has happened to it so far, the server says what is left to do.

    → WATCH head marks (claims)   HMGET head …   HLEN marks    and what has changed is read
      which rows has another attempt written, which an earlier run, which this attempt itself?
    → MULTI   XADD … of the others   HSET marks …   EXEC
    ← nil: somebody was faster, once more

The outcome of an EXEC that nobody heard of is in the marks of this attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from spark_streams.errors import ServerUnreachableError
from spark_streams.sink.chunks import Chunk
from spark_streams.sink.fingerprint import Hashes, Mask, Multiset
from spark_streams.sink.ledger import Command, expiry, pack_mark
from spark_streams.sink.ledger_view import LedgerView, LedgerViews
from spark_streams.sink.limits import Limits
from spark_streams.sink.rows import error_of_row, first_refused, id_refused
from spark_streams.sink.trim import Trimmer
from spark_streams.wire.connection import Reply, ReplyError, pack
from spark_streams.wire.multi_exec import Outcome, framed
from spark_streams.wire.replies import errors_among, parse_replies
from spark_streams.wire.session import Session
from spark_streams.wire.xinfo import read_stream_state

_NOTHING: Hashes = np.empty(0, np.uint64)
T = TypeVar("T")


@dataclass
class Write:
    """A chunk on its way, with the name of its marks and the books of its segments."""

    chunk: Chunk
    mark: bytes
    books: Sequence[LedgerView]
    commands: int = 0  # between MULTI and EXEC

    def expected(self) -> bytes:
        """The answers to its questions while nothing has changed."""
        return b"+OK\r\n" + b"".join([book.expected() for book in self.books])


def parts_of(chunk: Chunk, books: Sequence[LedgerView]) -> Iterator[tuple[LedgerView, int, int, Hashes]]:
    """(book, start, stop, fingerprints) of each segment."""
    assert chunk.hashes is not None
    for book, (_, start, stop) in zip(books, chunk.segments(), strict=True):
        yield book, start, stop, chunk.hashes[start:stop]


class Resolver:
    """Writes chunks over a session while nothing else is under way on it."""

    def __init__(self, session: Session, trimmer: Trimmer, books: LedgerViews, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        self._trimmer = trimmer
        self._books = books

    def resolve(self, one: Write) -> None:
        """Write what is not written yet of this chunk, whatever has happened to it so far."""
        while not self.asking(lambda: self._try(one)):
            pass
        self.finished(one)

    def asking(self, attempt: Callable[[], T]) -> T:
        """Repeat something until it succeeds: lost connections and what is transient are waited out. Any other
        ReplyError is raised as the named error that it is."""
        try:
            return self._session.run_part(lambda server: attempt())
        except ReplyError as refusal:
            raise self._session.get().error_of(refusal, ("EXEC", "(the sink's ledger)")) from None

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        return self._session.get().pipeline(commands)

    def _try(self, one: Write) -> bool:
        """One attempt; whether the chunk is done. Raises a ReplyError or ServerUnreachableError where it may be tried
        again: the mark tells the next attempt what this one has done."""
        books, chunk = one.books, one.chunk
        explicit = [book.stream for book in books] if chunk.ids is not None else []
        replies = self.ask([
            ("WATCH", *[key for book in books for key in book.watched()], *explicit),
            *[question for book in books for question in book.questions()],
            *[("XINFO", "STREAM", stream) for stream in explicit],
        ])  # fmt: skip
        asked = replies[1 : 1 + 2 * len(books)]
        for reply in [replies[0], *asked]:
            if isinstance(reply, ReplyError):
                raise reply
        self._books.look_again(books, asked[0::2], asked[1::2], self.ask)
        wanted = np.zeros(len(chunk), np.bool_)
        claimed = np.zeros(len(chunk), np.bool_)
        met: list[tuple[LedgerView, Hashes]] = []
        for book, start, stop, hashes in parts_of(chunk, books):
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
            self.ask([("UNWATCH",)])
        else:
            rest = chunk.where(wanted)
            part = Write(rest, one.mark, self._books.of(rest.stream_names()))
            tops = dict(zip(explicit, replies[1 + 2 * len(books) :], strict=True))
            if not self._write(part, claimed[wanted], tops):
                return False
        for book, hashes in met:
            book.others.remove(hashes)
        return True

    def _write(self, one: Write, claimed: Mask, tops: Mapping[bytes, Reply]) -> bool:
        """MULTI … EXEC of these rows; False where something has changed since WATCH."""
        fresh = one.chunk.where(~claimed)
        self._check_ids(fresh, tops)
        trims = self._trimmer.commands(fresh.stream_names())
        marks = self.marks(one, claimed)
        pipe = self._session.pipe
        last = b"".join([*trims, *[pack(*mark) for mark in marks], pack("EXEC"), pipe.mark])
        try:
            pipe.send(pack("MULTI"), fresh.requests.slice(0, len(fresh)), last)
            replies = pipe.take()
        except ServerUnreachableError:
            self._limits.lost(fresh)
            raise
        return self.is_carried_out(one, fresh, claimed, replies)

    def is_carried_out(self, one: Write, fresh: Chunk, claimed: Mask | None, raw: bytes) -> bool:
        """What the replies to MULTI … EXEC say: carried out, or not (nil). fresh: the rows that were sent.

        Raises ReplyError where the server gave it up, the error of the first row that was refused inside it.
        """
        results = Outcome.read(parse_replies(raw)).unless_given_up()
        if results is None:
            return False
        refused = dict(errors_among(results))
        if refused:
            self._take_back(one, fresh, claimed, refused)
        self.written(one, claimed)
        return True

    def _take_back(self, one: Write, fresh: Chunk, claimed: Mask | None, refused: dict[int, ReplyError]) -> None:
        """Rows were refused inside the transaction, which does not undo the mark: mark only what was written. Raises
        the error of the first one."""
        keep = np.ones(len(one.chunk), np.bool_)
        claims = np.zeros(len(one.chunk), np.bool_) if claimed is None else claimed
        keep[np.flatnonzero(~claims)[[at for at in refused if at < len(fresh)]]] = False
        corrections: list[Command] = []
        for book, start, stop, hashes in parts_of(one.chunk, one.books):
            here = slice(start, stop)
            mark = pack_mark(hashes[~claims[here] & keep[here]], hashes[claims[here]])
            corrections.append(("HSET", book.marks, one.mark, mark))
            refused_here = int((~keep[here]).sum())
            corrections.append(("DECRBY", book.keys.part("written"), refused_here))
        self.asking(lambda: self.ask(framed(corrections)))
        at, why = next(iter(refused.items()))
        if at < len(fresh):
            raise error_of_row(self._session.get(), fresh, at, why)
        raise self._session.get().error_of(why, ("XTRIM", one.books[0].stream))

    def _check_ids(self, fresh: Chunk, tops: Mapping[bytes, Reply]) -> None:
        """Explicit ids must rise above the top of their stream, which is watched. Raises EntryIdError and kin."""
        if fresh.ids is None:
            return
        for stream, start, stop in fresh.segments():
            server = self._session.get()
            top = read_stream_state(server, stream, tops[stream]).last
            place = first_refused(fresh.ids.slice(start, stop - start), top)
            if place is not None:
                raise id_refused(server, fresh, start + place)

    def written(self, one: Write, claimed: Mask | None) -> None:
        """The mark is there, and the rows are."""
        for book, start, stop, hashes in parts_of(one.chunk, one.books):
            self._books.made(book, one.mark, hashes)
            if claimed is not None:
                claims = hashes[claimed[start:stop]]
                book.earlier.remove(claims)
                book.claims_read += 8 * len(claims)  # they were watched: nobody else's are between
        if claimed is None:
            self.finished(one)

    def marks(self, one: Write, claimed: Mask | None) -> list[Command]:
        """The commands that mark the chunk's rows as written, or as claimed."""
        commands: list[Command] = []
        for book, start, stop, hashes in parts_of(one.chunk, one.books):
            claims = hashes[claimed[start:stop]] if claimed is not None else _NOTHING
            written = hashes[~claimed[start:stop]] if claimed is not None else hashes
            commands.append(("HSET", book.marks, one.mark, pack_mark(written, claims)))
            names = [book.marks, book.keys.part("written")]
            commands.append(("INCRBY", names[-1], len(written)))
            if len(claims):
                names.append(book.keys.part("claims"))
                commands.append(("APPEND", names[-1], claims.astype("<u8").tobytes()))
            if not book.marked or len(claims):
                commands.append(("SADD", book.keys.parts, *[name[len(book.keys.head) + 1 :] for name in names]))
            commands += expiry(self._books.batch, book.keys.head, book.keys.parts, *names)
        return commands

    def finished(self, one: Write) -> None:
        self._books.forget(one.mark)
        self._session.backoff.succeeded()
        self._trimmer.after([book.stream for book in one.books])
