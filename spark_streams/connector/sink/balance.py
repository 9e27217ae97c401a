"""One stream at the end of a batch: its ledger is compared with the rows of the tasks. Pure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_streams.connector.sink import refusals
from spark_streams.connector.sink.batch import Batch, SourceReport
from spark_streams.connector.sink.fingerprint import Hashes, Multiset
from spark_streams.connector.sink.ledger import (
    HEAD_FIELDS,
    Command,
    Keys,
    LedgerHead,
    MarkKey,
    expiry,
    number_in,
    read_mark,
    rows_in,
)
from spark_streams.connector.wire.connection import Reply

_log = logging.getLogger("spark_streams.sink")


@dataclass(frozen=True)
class Total:
    """Rows of tasks for a stream. rows: their number; total: the sum of their fingerprints, mod 2^64."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Total) -> Total:
        return Total(self.rows + other.rows, (self.total + other.total) % 2**64)


@dataclass(frozen=True)
class LedgerContents:
    """Contents of a stream's ledger."""

    head: LedgerHead
    parts: Sequence[MarkKey]  # names of the keys
    carried: Hashes  # rows of an earlier piece of this batch
    claims: Hashes  # of this run
    written: int  # number of rows that this run has written
    marks: Sequence[bytes] = ()  # of earlier runs of this batch, and of the batch that it is a piece of
    missing: str = ""  # a part of these without marks; empty: none
    begun: int = 0  # rows of an earlier batch that is not done

    @staticmethod
    def read_commands(keys: Keys) -> list[Command]:
        """Return the commands whose replies `read` takes."""
        return [
            ("HMGET", keys.head, *HEAD_FIELDS),
            ("SMEMBERS", keys.parts),
            ("GET", keys.carried),
            ("GET", keys.part("claims")),
            ("GET", keys.part("written")),
        ]

    @classmethod
    def read(cls, replies: Sequence[Reply]) -> LedgerContents:
        """Return the contents, from the replies to `read_commands`. Raises LedgerError."""
        head, parts, carried, claims, written = replies
        names = [MarkKey.read(name) for name in parts]
        return cls(
            LedgerHead.read(head), names, _fingerprints(carried), _fingerprints(claims), number_in(written or b"0")
        )  # fmt: skip

    def earlier_commands(self, keys: Keys, kind: SourceReport) -> list[Command]:
        """Return the commands whose replies `with_earlier` takes: none, unless a run was killed."""
        is_begun = self.head.open_before(keys.batch.number) is not None
        return [
            *[("HVALS", keys.named(part.name)) for part in self._earlier(keys.batch, kind)],
            *(self.head.counts(keys, self.parts) if is_begun else []),
        ]

    def with_earlier(self, replies: Sequence[Reply], batch: Batch, kind: SourceReport) -> LedgerContents:
        """Return the contents with the replies to `earlier_commands`. Raises LedgerError."""
        parts = self._earlier(batch, kind)
        marks_of_parts = [reply for reply in replies[: len(parts)] if isinstance(reply, list)]
        missing = next((part.name for part, marks in zip(parts, marks_of_parts, strict=True) if not marks), "")
        marks = [mark for marks in marks_of_parts for mark in marks]
        return replace(self, marks=marks, missing=missing, begun=rows_in(replies[len(parts) :]))

    def _earlier(self, batch: Batch, kind: SourceReport) -> list[MarkKey]:
        """Return the parts of earlier runs of the batch, and of the batch that it is a piece of."""
        parts = [part for part in self.parts if part.has_marks and part.run != batch.run]
        return [part for part in parts if kind.narrowed or part.batch == batch.number]


@dataclass(frozen=True)
class Balance:
    """Comparison of the tasks' rows for a stream with its ledger."""

    batch: Batch
    kind: SourceReport
    stream: bytes
    received: Total | None  # rows of the tasks; None if they had no row for the stream
    named: int  # the batch that the record names for the stream, or NONE_CLOSED
    closed: int  # the batch that is closed
    contents: LedgerContents

    @property
    def head(self) -> LedgerHead:
        return self.contents.head

    @property
    def keys(self) -> Keys:
        return Keys.for_stream(self.stream, self.batch)

    @property
    def last(self) -> int:
        """The last batch that has reached this stream. It is later than ours if another driver runs the query."""
        return max(self.head.last_done, -1 if self.head.batch is None else self.head.batch)

    @property
    def is_forgotten(self) -> bool:
        """Whether the ledger forgets the stream: neither this batch, nor an earlier run of it, nor the batch that it is
        a piece of has written to it."""
        is_ours = self.kind.narrowed or self.received is not None or self.batch.number in (self.named, self.head.batch)
        return not is_ours and self.has_no_later_batch

    @property
    def has_no_later_batch(self) -> bool:
        """Whether no later batch has reached this stream."""
        return self.last <= self.batch.number

    def commands(self) -> list[Command]:
        """Return the commands that close the batch for the stream. Raises LedgerError."""
        if self.is_forgotten:
            self._require_end_of_earlier()
            return self._forget()
        if not self.has_no_later_batch:
            raise refusals.late_closing(self.batch, self.last)
        if self.batch.number in (self.closed, self.head.done):
            self._compare()
            return []
        return self._finish()

    def void_commands(self) -> list[Command]:
        """Return the commands that forget the stream without a comparison: none if a later batch has reached it."""
        return self._forget() if self.has_no_later_batch else []

    def _compare(self) -> None:
        """Compare the rows if the batch was done before, and nothing was written now. Raises LedgerError."""
        received = self.received or Total()
        is_lost = self.received is not None and self.named == self.closed == self.batch.number != self.head.done
        if is_lost and not self.kind.lossy:
            raise refusals.lost_closed(self.batch, self._shown, received.rows, self.contents.written)
        written = Total(self.head.rows, self.head.total) if self.head.done == self.batch.number else Total()
        if received == written:
            return
        if not self.kind.lossy:
            raise refusals.other_than_done(self.batch, self._shown, received.rows, written.rows)
        _log.warning(
            "stream %r: keeping the %d rows that batch %d wrote; it has %d rows now", self._shown, written.rows,
            self.batch.number, received.rows,
        )  # fmt: skip

    def _finish(self) -> list[Command]:
        """Compare the rows, and write `done`. Raises LedgerError."""
        batch, received = self.batch, self.received or Total()
        carried = self._carry()
        recorded = self.contents.written + len(self.contents.claims)
        if recorded < received.rows:
            raise refusals.fewer_known(batch, self._shown, received.rows, recorded)
        if recorded > received.rows:
            if not self.kind.lossy:
                raise refusals.more_known(batch, self._shown, received.rows, recorded)
            self._log_kept_rows(recorded - received.rows)
        return [*self._done(received), *carried]

    def _done(self, rows: Total) -> list[Command]:
        """Return the commands that say that the batch is done with these rows."""
        batch, head = self.batch, self.keys.head
        done: Command = ("HSET", head, "batch", batch.number, "done", batch.number)
        return [
            ("DEL", head), (*done, "rows", rows.rows, "total", rows.total), *expiry(batch, head),
            ("UNLINK", *self._part_keys()),
        ]  # fmt: skip

    def _carry(self) -> list[Command]:
        """Carry rows that are written and that this run has not claimed to the next batches. Only a batch that was cut
        may have such rows, for its other pieces. Raises LedgerError."""
        if self.contents.missing and (self.kind.narrowed or not self.kind.lossy):
            raise refusals.missing_marks(self.batch, self._shown, self.contents.missing)
        unclaimed = Multiset()
        unclaimed.add(np.concatenate([self.contents.carried, *[read_mark(mark)[0] for mark in self.contents.marks]]))
        unclaimed.remove(self.contents.claims)
        if not unclaimed.size:
            return []
        if self.kind.narrowed:
            return [("SET", self.keys.carried, unclaimed.hashes().astype("<u8").tobytes())]
        if unclaimed.size > len(self.contents.carried) and not self.kind.lossy:
            raise refusals.other_run(self.batch, self._shown, unclaimed.size)
        self._log_kept_rows(unclaimed.size)
        return []

    def _require_end_of_earlier(self) -> None:
        """Raise LedgerError if the ledger lacks the end of an earlier batch."""
        batch, head = self.batch, self.head
        earlier = head.open_before(batch.number)
        if earlier is not None:
            refusals.give_up(batch, self._shown, earlier, self.contents.begun, self.keys.head)
        elif head.batch is not None and head.lacks(self.named, self.closed):
            raise refusals.lost_done(batch, self._shown, self.named, head.last_done, self.keys.head)

    def _forget(self) -> list[Command]:
        if len(self.contents.carried):
            self._log_kept_rows(len(self.contents.carried))
        if self.head == LedgerHead() or self.batch.expires:  # another driver was faster; or no batch follows
            head = self.keys.head
            touch: Command = ("HSET", head, "batch", self.batch.number)  # breaks every WATCH, also without the key
            return [touch, ("UNLINK", head, *self._part_keys())]
        return self._done(Total())  # the head is deleted after the record has forgotten the stream

    def _part_keys(self) -> list[bytes]:
        return [self.keys.parts, self.keys.carried, *[self.keys.named(part.name) for part in self.contents.parts]]

    @property
    def _shown(self) -> str:
        return self.stream.decode("utf-8", "replace")

    def _log_kept_rows(self, rows: int) -> None:
        cause = "were lost since" if self.kind.lossy else "killed the query later"
        _log.warning("stream %r: keeping %d rows of entries that %s", self._shown, rows, cause)


def _fingerprints(value: bytes | None) -> Hashes:
    return np.frombuffer(value or b"", "<u8").astype(np.uint64)
