"""One stream at the end of a batch: what its ledger says is held against what the tasks had. Pure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_streams.sink.encode.fingerprint import Hashes, Multiset
from spark_streams.sink.ledger import refusals
from spark_streams.sink.ledger.batch import Batch, Kind
from spark_streams.sink.ledger.ledger import (
    HEAD_FIELDS,
    Command,
    Head,
    Keys,
    Part,
    expiry,
    number_in,
    read_mark,
    rows_in,
)
from spark_streams.wire.connection.connection import Reply

_log = logging.getLogger("spark_streams.sink")


@dataclass(frozen=True)
class Total:
    """What tasks had for a stream. rows: how many; total: the sum of their fingerprints, mod 2^64."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Total) -> Total:
        return Total(self.rows + other.rows, (self.total + other.total) % 2**64)


@dataclass(frozen=True)
class InLedger:
    """What the ledger has of a stream. claims: of this run; written: rows, by this run; marks: of earlier runs of this
    batch, and of what it is a piece of; begun: rows, by an earlier batch that is not done."""

    head: Head
    parts: Sequence[Part]
    carried: Hashes
    claims: Hashes
    written: int
    marks: Sequence[bytes] = ()
    begun: int = 0

    @staticmethod
    def questions(keys: Keys) -> list[Command]:
        """What `read` wants to know."""
        return [
            ("HMGET", keys.head, *HEAD_FIELDS),
            ("SMEMBERS", keys.parts),
            ("GET", keys.carried),
            ("GET", keys.part("claims")),
            ("GET", keys.part("written")),
        ]

    @classmethod
    def read(cls, replies: Sequence[Reply]) -> InLedger:
        """From the replies to `questions`. Raises LedgerError."""
        head, parts, carried, claims, written = replies
        names = [Part.read(name) for name in parts]
        return cls(
            Head.read(head), names, _fingerprints(carried), _fingerprints(claims), number_in(written or b"0")
        )  # fmt: skip

    def earlier_questions(self, keys: Keys, kind: Kind) -> list[Command]:
        """What `with_earlier` wants to know: nothing, unless a run was killed."""
        batch = keys.batch
        is_begun = self.head.open_before(batch.number) is not None
        earlier = [part for part in self.parts if part.has_marks and part.run != batch.run]
        return [
            *[("HVALS", keys.named(part.name)) for part in earlier if kind.narrowed or part.batch == batch.number],
            *(self.head.counts(keys, self.parts) if is_begun else []),
        ]

    def with_earlier(self, replies: Sequence[Reply]) -> InLedger:
        """The same, with the replies to `earlier_questions`. Raises LedgerError."""
        marks = [mark for reply in replies if isinstance(reply, list) for mark in reply]
        return replace(self, marks=marks, begun=rows_in(reply for reply in replies if not isinstance(reply, list)))


@dataclass(frozen=True)
class Balance:
    """had: by the tasks, None if they had no row for the stream; named: the batch that the record has for it, or
    NONE_CLOSED; closed: the one that is closed; found: what the ledger has; is_void: the batch was written without the
    ledger, and nothing is held against that."""

    batch: Batch
    kind: Kind
    stream: bytes
    had: Total | None
    named: int
    closed: int
    found: InLedger
    is_void: bool

    @property
    def head(self) -> Head:
        """What the head says."""
        return self.found.head

    @property
    def keys(self) -> Keys:
        return Keys.of(self.stream, self.batch)

    @property
    def last(self) -> int:
        """The last batch that has come to this stream; later than ours where the query has gone on without us."""
        return max(self.head.last_done, -1 if self.head.batch is None else self.head.batch)

    @property
    def is_forgotten(self) -> bool:
        """Whether this batch leaves the stream behind: neither it nor an earlier run of it, or what it is a piece of,
        has written there."""
        is_ours = self.kind.narrowed or self.had is not None or self.batch.number in (self.named, self.head.batch)
        return (self.is_void or not is_ours) and self.last <= self.batch.number

    def commands(self) -> list[Command]:
        """What is to be written for the stream. Raises LedgerError."""
        if self.is_forgotten:
            return self._forget()
        if self.last > self.batch.number:
            if self.is_void:
                return []
            raise refusals.late_closing(self.batch, self.last)
        if self.batch.number in (self.closed, self.head.done):
            self._compare()
            return []
        return self._finish()

    def _compare(self) -> None:
        """The batch is done here, and nothing was written. Raises LedgerError."""
        had = self.had or Total()
        is_lost = self.had is not None and self.named == self.closed == self.batch.number != self.head.done
        if is_lost and not self.kind.lossy:
            raise refusals.lost_closed(self.batch, self._shown, had.rows, self.found.written)
        written = Total(self.head.rows, self.head.total) if self.head.done == self.batch.number else Total()
        if had == written:
            return
        if not self.kind.lossy:
            raise refusals.other_than_done(self.batch, self._shown, had.rows, written.rows)
        _log.warning(
            "stream %r: the %d rows that batch %d wrote stay, and it has %d now", self._shown, written.rows,
            self.batch.number, had.rows,
        )  # fmt: skip

    def _finish(self) -> list[Command]:
        """Leave `done`. Raises LedgerError."""
        batch, had = self.batch, self.had or Total()
        carried = self._carry()
        known = self.found.written + len(self.found.claims)
        if known < had.rows:
            raise refusals.fewer_known(batch, self._shown, had.rows, known)
        if known > had.rows:
            if not self.kind.lossy:
                raise refusals.more_known(batch, self._shown, had.rows, known)
            self._stays(known - had.rows)
        head = self.keys.head
        done: Command = ("HSET", head, "batch", batch.number, "done", batch.number)
        return [
            ("DEL", head), (*done, "rows", had.rows, "total", had.total), *expiry(batch, head),
            ("UNLINK", *self._keys_beside()), *carried,
        ]  # fmt: skip

    def _carry(self) -> list[Command]:
        """What becomes of rows that are written and that this run has not claimed: only a batch that was cut may leave
        some, for its other pieces. Raises LedgerError."""
        left = Multiset()
        left.add(np.concatenate([self.found.carried, *[read_mark(mark)[0] for mark in self.found.marks]]))
        left.remove(self.found.claims)
        if not left.size:
            return []
        if self.kind.narrowed:
            return [("SET", self.keys.carried, left.hashes().astype("<u8").tobytes())]
        if left.size > len(self.found.carried) and not self.kind.lossy:
            raise refusals.other_run(self.batch, self._shown, left.size)
        self._stays(left.size)
        return []

    def _forget(self) -> list[Command]:
        """Forget the stream. Raises LedgerError, unless nothing is held against it."""
        batch, head = self.batch, self.head
        earlier = head.open_before(batch.number)
        if earlier is not None and not self.is_void:
            refusals.give_up(batch, self._shown, earlier, self.found.begun, self.keys.head)
        elif head.batch is not None and head.lacks(self.named, self.closed) and not self.is_void:
            raise refusals.lost_done(batch, self._shown, self.named, head.last_done, self.keys.head)
        if len(self.found.carried):
            self._stays(len(self.found.carried))
        return [
            ("HSET", self.keys.head, "batch", batch.number),  # tells whoever WATCHes it, also where there is none
            ("UNLINK", self.keys.head, *self._keys_beside()),
        ]

    def _keys_beside(self) -> list[bytes]:
        return [self.keys.parts, self.keys.carried, *[self.keys.named(part.name) for part in self.found.parts]]

    @property
    def _shown(self) -> str:
        return self.stream.decode("utf-8", "replace")

    def _stays(self, rows: int) -> None:
        what = "are gone since" if self.kind.lossy else "killed the query later"
        _log.warning("stream %r: %d rows of entries that %s stay in it", self._shown, rows, what)


def _fingerprints(value: bytes | None) -> Hashes:
    return np.frombuffer(value or b"", "<u8").astype(np.uint64)
