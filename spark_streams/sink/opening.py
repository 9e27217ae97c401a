"""How a task comes into the ledgers of streams that it writes to for the first time (the three steps of ledger.py).

    → WATCH heads   HMGET head …   HMGET record closed stream …       what is open, what is done
    → HSET record stream … = this batch   HGET record closed          is the batch closed meanwhile?
    → MULTI   HSET head batch runs …   EXEC                           nil: the head was touched, once more
    → SMEMBERS parts   GET carried   HGETALL marks …                  what is written already

Steps that are not needed are left out: a task of a run that others have entered joins it with the first and the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_streams.sink import refusals
from spark_streams.sink.fingerprint import Multiset
from spark_streams.sink.ledger import CLOSED, HEAD_FIELDS, Command, Head, Part, expiry, read_mark
from spark_streams.sink.ledger_view import Ask, LedgerView, LedgerViews, checked
from spark_streams.wire.connection import Reply
from spark_streams.wire.multi_exec import Outcome, framed


def open_books(books: LedgerViews, wanted: Sequence[LedgerView], ask: Ask) -> None:
    """Enter this run in the heads of streams that it has not written to yet, and read what is written already.

    May be run again after a lost connection. Raises LedgerError where it must not write, ReplyError.
    """
    fresh = [book for book in wanted if not book.opened]
    if fresh:
        opening = _Opening(books, ask)
        while not opening.enter(fresh):
            pass
        opening.read([book for book in fresh if not book.done])
        for book in fresh:
            book.opened = True


class _Opening:
    def __init__(self, books: LedgerViews, ask: Ask) -> None:
        self._books = books
        self._batch = books.batch
        self._ask_server = ask

    def _ask(self, commands: Sequence[Command]) -> list[Reply]:
        return checked(self._ask_server(commands))

    def _transact(self, commands: Sequence[Command]) -> list[Reply] | None:
        """The replies; None where something that is watched has changed. Raises ReplyError."""
        results = Outcome.read(self._ask_server(framed(commands))).unless_given_up()
        return None if results is None else checked(results)

    # -- entering -----------------------------------------------------------------------------------------------

    def enter(self, fresh: Sequence[LedgerView]) -> bool:
        """One attempt; False where something has changed meanwhile."""
        batch = self._batch
        *heads, record = self._ask([
            ("UNWATCH",),
            ("WATCH", *[book.keys.head for book in fresh]),
            *[("HMGET", book.keys.head, *HEAD_FIELDS) for book in fresh],
            ("HMGET", batch.record, CLOSED, *[book.stream for book in fresh]),
        ])[2:]  # fmt: skip
        closed = record[0]
        entering: list[LedgerView] = []
        unnamed: list[bytes] = []
        for book, reply, named in zip(fresh, heads, record[1:], strict=True):
            book.head, book.answered = Head.read(reply), reply
            role = self._role(book, closed, named)
            book.done = role == "done"
            if role in ("open", "take over"):
                entering.append(book)
            if not book.done and named != b"%d" % batch.number:
                unnamed.append(book.stream)
        if unnamed and not self._name(unnamed, closed):
            return False
        if not entering:
            return True
        results = self._transact([
            *[command for book in entering for command in book.head.entered(book.keys)],
            *[("HMGET", book.keys.head, *HEAD_FIELDS) for book in entering],
        ])  # fmt: skip
        if results is None:
            return False
        for book, reply in zip(entering, results[-len(entering) :], strict=True):
            book.head, book.answered = Head.read(reply), reply
        return True

    def _role(self, book: LedgerView, closed: bytes | None, named: bytes | None) -> str:
        """What is to be done with this stream. closed, named: what the record says. Raises LedgerError."""
        batch = self._batch
        if batch.expires and closed is None:
            raise refusals.job_is_over(batch, book.shown)
        if closed is not None and int(closed) >= batch.number:
            if int(closed) > batch.number:
                raise refusals.set_back(batch, book.shown, int(closed))
            return "done"
        role = book.head.role_of(batch, book.shown)
        if role == "open":
            self._require_whole(book, closed, named)
        return role

    def _name(self, streams: Sequence[bytes], closed: bytes | None) -> bool:
        """Write these into the record; whether still the same batch is closed."""
        record = self._batch.record
        words = [word for stream in streams for word in (stream, self._batch.number)]
        closed_now = self._ask([("HSET", record, *words), *expiry(self._batch, record), ("HGET", record, CLOSED)])[-1]
        if self._batch.expires and closed_now is None:
            self._ask([("UNLINK", record)])  # the job is over, and nobody else would remove it
        return bool(closed_now == closed)

    def _require_whole(self, book: LedgerView, closed: bytes | None, named: bytes | None) -> None:
        """Spark begins a batch when the one before it is done; where the server has another opinion, it has lost
        something. Raises LedgerError."""
        batch, head = self._batch, book.head
        if head.batch is not None and head.is_open_before(batch.number):
            told, parts = self._ask([("GET", batch.told), ("SMEMBERS", book.keys.parts)])
            if batch.is_named_by(told):
                return  # a piece of that batch
            counts = [part for part in map(Part.read, parts) if part.batch == head.batch and part.what == "written"]
            rows = sum(int(count or 0) for count in self._ask([("GET", book.keys.named(one.name)) for one in counts]))
            refusals.give_up(batch, book.shown, head.batch, rows, book.keys.head)
        elif (
            head.batch is not None
            and named is not None
            and closed is not None
            and head.last_done < int(named) <= int(closed)
        ):
            raise refusals.lost_done(batch, book.shown, int(named), head.last_done, book.keys.head)

    # -- what is written ----------------------------------------------------------------------------------------

    def read(self, books: Sequence[LedgerView]) -> None:
        """Marks, claims, and what is carried. Nobody of an earlier run or batch adds to them any more."""
        replies = self._ask([
            ("UNWATCH",),
            *[command for book in books for command in (
                ("SMEMBERS", book.keys.parts), ("GET", book.keys.carried), ("HGETALL", book.marks),
                ("TYPE", book.stream),
            )],
        ])[1:]  # fmt: skip
        for book, names, carried, marks, kind in zip(books, *[replies[at::4] for at in range(4)], strict=True):
            book.kind = kind
            parts = [Part.read(name) for name in names]
            stale = [part for part in parts if part.batch < self._batch.number]
            book.carried = self._without(book, stale) if stale else carried or b""
            own = book.marks[len(book.keys.head) + 1 :].decode()
            if not marks and any(part.name == own for part in parts):
                raise refusals.marks_gone(self._batch, book.shown, own)
            self._books.met_marks(book, marks)
            self._read_earlier(book, parts)

    def _without(self, book: LedgerView, stale: Sequence[Part]) -> bytes:
        """Drop the marks of an earlier batch, which came to nothing; where this one is a piece of it, what they say is
        carried on. What is carried then."""
        keys = [book.keys.named(part.name) for part in stale]
        gone: list[Command] = [("UNLINK", *keys), ("SREM", book.keys.parts, *[part.name for part in stale])]
        while True:
            told, _, carried, names, *marks = self._ask([
                ("GET", self._batch.told),
                ("WATCH", book.keys.carried),
                ("GET", book.keys.carried),
                ("SMEMBERS", book.keys.parts),
                *[("HVALS", book.keys.named(part.name)) for part in stale if part.has_marks],
            ])  # fmt: skip
            carried = carried or b""
            if stale[0].name.encode() not in names:  # another task was faster
                self._ask([("UNWATCH",)])
                return bytes(carried)
            if self._batch.is_named_by(told):
                carried += b"".join([read_mark(mark)[0].astype("<u8").tobytes() for some in marks for mark in some])
            kept: list[Command] = [("SET", book.keys.carried, carried)] if carried else []
            if self._transact([*kept, *gone]) is not None:
                return bytes(carried)

    def _read_earlier(self, book: LedgerView, parts: Sequence[Part]) -> None:
        """Rows that other runs of this batch have written, or earlier pieces of it."""
        batch = self._batch
        book.earlier, book.claims_read = Multiset(), 0
        book.earlier.add(np.frombuffer(book.carried, "<u8").astype(np.uint64))
        earlier = [part for part in parts if part.batch == batch.number and part.run != batch.run and part.has_marks]
        found = self._ask([("HVALS", book.keys.named(part.name)) for part in earlier])
        for part, marks in zip(earlier, found, strict=True):
            if not marks:
                raise refusals.marks_gone(batch, book.shown, part.name)
            for mark in marks:
                book.earlier.add(read_mark(mark)[0])
        book.recovers = bool(book.carried or earlier)
        if book.recovers:
            self._books.read_claims(book, self._ask_server)
