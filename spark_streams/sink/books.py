"""What one task knows of the ledger, stream by stream, and what it asks the server to know more. Pure but for asking.

A *book* is opened when a task has its first row for a stream. From then on each transaction asks again whether head and
marks are still as the book knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_streams.errors import LedgerError
from spark_streams.sink.fingerprint import Hashes, Multiset
from spark_streams.sink.ledger import HEAD_FIELDS, Batch, Command, Head, Keys, expiry, read_mark
from spark_streams.wire.connection import Reply, ReplyError

# One round trip: commands in, replies out.
Ask = Callable[[Sequence[Command]], list[Reply]]


@dataclass
class Book:
    """One stream's part in the ledger, as a task knows it."""

    stream: bytes
    keys: Keys
    marks: bytes  # the key of this partition's marks
    head: Head = field(default_factory=Head)
    answered: Sequence[bytes | None] = ()  # the same as the server's answer to HMGET
    done: bool = False  # the batch is complete: nothing is written
    seen: set[bytes] = field(default_factory=set)  # marks that are known
    others: Multiset = field(default_factory=Multiset)  # rows written by other attempts of this partition, not yet met
    earlier: Multiset = field(default_factory=Multiset)  # rows written by earlier runs that nobody has claimed yet
    carried: bytes = b""  # fingerprints of rows that an earlier piece of the same batch has written for this one
    recovers: bool = False
    claims_read: int = 0  # bytes
    rows: int = 0  # that this task has had for the stream, whoever wrote them
    total: int = 0  # the sum of their fingerprints, mod 2^64
    marked: bool = False  # this attempt has made a mark
    opened: bool = False

    @property
    def settled(self) -> bool:
        """Whether all rows of this stream are simply to be written."""
        return not self.done and not len(self.earlier) and not len(self.others)

    def watched(self) -> list[bytes]:
        """The keys whose change must stop a transaction."""
        return [self.keys.head, self.marks, *([self.keys.part("claims")] if len(self.earlier) else [])]

    def expected(self) -> bytes:
        """The replies to HMGET and HLEN of `questions` while nothing has changed."""
        lines = [b"$-1\r\n" if text is None else b"$%d\r\n%b\r\n" % (len(text), text) for text in self.answered]
        return b"*%d\r\n%b:%d\r\n" % (len(lines), b"".join(lines), len(self.seen))

    def questions(self) -> list[Command]:
        """HMGET of the head, HLEN of the marks."""
        return [("HMGET", self.keys.head, *HEAD_FIELDS), ("HLEN", self.marks)]

    def count(self, hashes: Hashes) -> None:
        """Rows have come in."""
        self.rows += len(hashes)
        with np.errstate(over="ignore"):
            self.total = (self.total + int(hashes.sum(dtype=np.uint64))) % 2**64


class Books:
    """All books of one task. Every method that asks may be run again after a lost connection."""

    def __init__(self, batch: Batch, partition: int, attempt: str) -> None:
        self.batch = batch
        self.partition = partition
        self.attempt = attempt
        self._books: dict[bytes, Book] = {}
        self._own: dict[tuple[bytes, bytes], Hashes] = {}  # stream, name → what marks of this attempt say

    def all(self) -> list[Book]:
        """Every book of this task."""
        return list(self._books.values())

    def of(self, streams: Iterable[bytes]) -> list[Book]:
        """The books of these streams, opened or not."""
        found = []
        for stream in streams:
            if stream not in self._books:
                keys = Keys.of(stream, self.batch)
                self._books[stream] = Book(stream, keys, keys.part(self.partition))
            found.append(self._books[stream])
        return found

    def open(self, books: Sequence[Book], ask: Ask) -> None:
        """Enter this run in the heads of streams that it has not written to yet, and read what is written already.

        Raises LedgerError where it must not write.
        """
        fresh = [book for book in books if not book.opened]
        if not fresh:
            return
        named = [word for book in fresh for word in (book.stream, self.batch.number)]
        index = self.batch.index.encode()
        _checked(ask([("HSET", index, *named), *expiry(self.batch, index)]))
        self._enter(fresh, ask)
        for book in fresh:
            if not book.done:
                self._read_earlier_runs(book, ask)
                self.read_marks(book, ask)
            book.opened = True

    def _enter(self, books: Sequence[Book], ask: Ask) -> None:
        while True:
            heads = _checked(ask([
                ("WATCH", *[book.keys.head for book in books]),
                *[("HMGET", book.keys.head, *HEAD_FIELDS) for book in books],
                *[("SMEMBERS", book.keys.parts) for book in books],
                *[("GET", book.keys.carried) for book in books],
            ]))  # fmt: skip
            commands: list[Command] = []
            answers = [heads[1 + at : 1 + at + len(books)] for at in (0, len(books), 2 * len(books))]
            for book, reply, parts, carried in zip(books, *answers, strict=True):
                book.carried = carried or b""
                head = Head.read(reply)
                role = head.role_of(self.batch, book.stream.decode("utf-8", "replace"))
                book.done, book.head, book.answered = role == "done", head, reply
                if role == "open" and parts:
                    # A batch that was given up: it cannot be replayed any more.
                    stale = [book.keys.named(part.decode()) for part in parts]
                    commands += self._carry_over(book, stale, ask)
                    commands.append(("UNLINK", book.keys.parts, *stale))
                if role in ("open", "take over"):
                    commands += head.entered(book.keys)
            if not commands:
                _checked(ask([("UNWATCH",)]))
                return
            replies = ask([("MULTI",), *commands, ("EXEC",)])
            if replies[-1] is not None:
                _checked(replies)
                # Once more: now every head says `join`, and is as the server has it.

    def _carry_over(self, book: Book, stale: Sequence[bytes], ask: Ask) -> list[Command]:
        """Where this batch is a piece of one that was cut and came to nothing, what that has written is carried on."""
        told, *marks = _checked(ask([
            ("GET", self.batch.told),
            *[("HVALS", key) for key in stale if key.rpartition(b":")[2].isdigit()],
        ]))  # fmt: skip
        if told != str(self.batch.number).encode():
            return []
        written = b"".join([read_mark(mark)[0].astype("<u8").tobytes() for values in marks for mark in values])
        return [("SET", book.keys.carried, book.carried + written)] if written else []

    def _read_earlier_runs(self, book: Book, ask: Ask) -> None:
        book.earlier.add(np.frombuffer(book.carried, "<u8").astype(np.uint64))
        book.recovers = bool(book.carried)
        runs = book.head.runs[:-1]
        if not runs and not book.recovers:
            return
        prefixes = tuple(f"{self.batch.number}:{run}:" for run in runs)
        parts = [part.decode() for part in _checked(ask([("SMEMBERS", book.keys.parts)]))[0]] if runs else []
        marks = [part for part in parts if part.startswith(prefixes) and part.rpartition(":")[2].isdigit()]
        for part in marks:
            for mark in _checked(ask([("HVALS", book.keys.named(part))]))[0]:
                book.earlier.add(read_mark(mark)[0])
        book.recovers |= bool(marks)
        if book.recovers:
            self.read_claims(book, ask)

    def read_claims(self, book: Book, ask: Ask) -> None:
        """What this run has claimed since the last look: nobody else may claim it."""
        claims = _checked(ask([("GETRANGE", book.keys.part("claims"), book.claims_read, -1)]))[0]
        book.earlier.remove(np.frombuffer(claims, "<u8").astype(np.uint64))
        book.claims_read += len(claims)

    def read_marks(self, book: Book, ask: Ask) -> None:
        """Marks of this partition that were not known: rows of other attempts, or our own of unknown outcome."""
        flat = _checked(ask([("HGETALL", book.marks)]))[0]
        own = self.attempt.encode() + b"."
        for name, mark in zip(flat[0::2], flat[1::2], strict=True):
            if name in book.seen:
                continue
            book.seen.add(name)
            if name.startswith(own):
                self._own[book.stream, name] = np.concatenate(read_mark(mark))
            else:
                book.others.add(np.concatenate(read_mark(mark)))

    def made(self, book: Book, name: bytes, hashes: Hashes) -> None:
        """A mark of this attempt is known to be there."""
        book.seen.add(name)
        book.marked = True
        self._own[book.stream, name] = hashes

    def own(self, book: Book, name: bytes) -> Hashes | None:
        """What this mark of our own says; None where it is not known to be there."""
        return self._own.get((book.stream, name))

    def forget(self, name: bytes) -> None:
        """The chunk of this mark is finished."""
        for book in self._books.values():
            self._own.pop((book.stream, name), None)

    def look_again(self, books: Sequence[Book], heads: Sequence[Reply], lengths: Sequence[int], ask: Ask) -> None:
        """Bring books up to date with what `questions` gave. Raises LedgerError where the run must not go on."""
        for book, reply, length in zip(books, heads, lengths, strict=True):
            head = Head.read(reply)
            if head != book.head:
                role = head.role_of(self.batch, book.stream.decode("utf-8", "replace"))
                if role not in ("join", "done"):
                    raise LedgerError(
                        f"the ledger of stream {book.stream.decode('utf-8', 'replace')!r} was deleted or changed while "
                        f"batch {self.batch.number} of query {self.batch.query} was being written: run the batch again"
                    )
                book.head, book.answered, book.done = head, reply, role == "done"
            if length != len(book.seen):
                self.read_marks(book, ask)
            if book.recovers:
                self.read_claims(book, ask)


def _checked(replies: list[Reply]) -> list[Reply]:
    """Raises the first error among the replies, as a ReplyError."""
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
        if isinstance(reply, list):
            _checked(reply)
    return replies
