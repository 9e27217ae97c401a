"""What a query remembers of its batches from run to run, beside the first stream that it reads (suspects)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from spark_streams.errors import StreamStateError
from spark_streams.model.keys import CLOSED, is_returned, key_beside, record_key
from spark_streams.model.numbers import parse_number
from spark_streams.source.offset import Offset
from spark_streams.source.recovery.poison_state import Book
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Failure:
    """What killed the query last, where somebody could tell: the error's class and message."""

    error: str = ""
    message: str = ""


@dataclass(frozen=True)
class Remembered:
    """What a run knows of the book that is kept on the server. book: None if it was not asked for; key: where it is;
    may_hold: pieces may be held apart that the book does not show."""

    book: Book | None = None
    key: bytes | None = None
    may_hold: bool = True

    @property
    def holds_some(self) -> bool:
        """Whether pieces are held apart."""
        return self.book is not None and bool(self.book.pieces)


class Record:
    """The book of one query while a batch is planned or made. known: what the run knows of it."""

    def __init__(self, server: Server, known: Remembered, *offsets: Offset) -> None:
        """offsets: the book stands beside the first stream of one of them, the last one before others."""
        self._server = server
        self._offset = offsets[0]  # of the batch that is written of
        self.known = known
        if known.book is None:
            self.known = replace(known, book=Book(), key=None)
            for key in dict.fromkeys(_key(offset) for offset in offsets if offset.streams):
                text = server.execute("GET", key)
                if text is not None:
                    self.known = replace(known, book=_book(key, text), key=key)
                    break

    @property
    def book(self) -> Book:
        """As it was read or saved last."""
        assert self.known.book is not None
        return self.known.book

    def save(self, book: Book) -> None:
        """From now on that is known."""
        key, known = _key(self._offset), self.known.key
        old = [("DEL", known)] if known not in (None, key) else []
        self._server.execute_all([("SET", key, book.to_json()), *old])
        self.known = replace(self.known, book=book, key=key)


def _book(key: bytes, text: bytes) -> Book:
    try:
        return Book.from_json(text)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise StreamStateError(
            f"key {key.decode('utf-8', 'replace')!r} holds {text[:50]!r}, which is no record of failed batches: "
            "another client has changed it, or spark-streams before 0.1.0 wrote it. Only the query's user may write "
            "keys rstream:… (docs/reference/rights.md). Restore the key from the server's backup; if no batch of the "
            "query has failed yet, delete it (DEL). If spark-streams before 0.1.0 wrote it, delete it and start the "
            "query with a new checkpoint directory"
        ) from None


def note_try(server: Server, key: bytes, token: str, query: str, batch: str) -> None:
    """A task notes which micro-batch of Spark's the batch with this token is. key: from `tried_key`."""
    if query:
        server.execute("SET", key, f"{token} {batch} {query}")


def is_done_in_the_sink(server: Server, end: Offset) -> bool:
    """Whether an exactly-once sink on this server has completed the batch that ends here: then no run has died of its
    entries, but between the sink and Spark's commit log. False if nobody can tell: another sink, another server."""
    note = server.execute("GET", tried_key(end))
    token, _, named = (note or b"").decode("utf-8", "replace").partition(" ")
    batch, _, query = named.partition(" ")
    if token != end.token or not query:
        return False
    [reply] = server.pipeline([("HGET", record_key(query), CLOSED)])  # an error: we have no right to the sink's keys
    closed, number = parse_number(reply) if isinstance(reply, bytes) else None, parse_number(batch)
    return closed is not None and number is not None and closed >= number


def tried_key(end: Offset) -> bytes:
    """Where a task notes which micro-batch of Spark's the last batch was."""
    return key_beside(_first(end), "tried", end.group, end.consumer)


def failure_of(server: Server, end: Offset) -> Failure:
    """What somebody noted about the query's end."""
    text = server.execute("GET", failure_key(_first(end), end.group, end.consumer))
    try:
        told = json.loads(text or b"{}")
        return Failure(str(told.get("error", "")), str(told.get("message", "")))
    except (ValueError, AttributeError, RecursionError):
        return Failure()


def drop_failure(server: Server, end: Offset) -> None:
    """What was noted speaks of this end of the query, and of no other."""
    server.execute("DEL", failure_key(_first(end), end.group, end.consumer))


def note_failure(server: Server, offset: Offset, failure: Failure) -> None:
    """Note why a query ended, for the letter of the entry that killed it. offset: any of the query's offsets."""
    if offset.streams:
        key = failure_key(_first(offset), offset.group, offset.consumer)
        server.execute("SET", key, json.dumps({"error": failure.error, "message": failure.message[:2000]}))


def failure_key(stream: str, group: str, consumer: str) -> bytes:
    """Where the reason of a query's end is noted."""
    return key_beside(stream, "failure", group, consumer)


def _key(offset: Offset) -> bytes:
    return key_beside(_first(offset), "attempts", offset.group, offset.consumer)


def _first(offset: Offset) -> str:
    """The stream that keys about the whole query stand beside."""
    return min(offset.positions or offset.streams, key=lambda stream: (is_returned(stream), stream))
