"""The ledger: the keys on the server that record which rows of a batch are written, and their meaning. Pure.

    batch       a micro-batch of a query, a named write within its foreachBatch, or one job of `df.write`
    run         one execution of a batch by one driver; after a kill, the next driver runs the batch again
    partition   the rows of one Spark task
    attempt     one execution of a partition. Spark may make several within a run: one after the other (retry) or at the
                same time (speculation)
    mark        names the rows that one transaction of an attempt has written, by their fingerprints

For each stream that a batch writes to, in the stream's own slot:

    rstream:sink:{orders}:<query>                          the head, a hash: batch, runs, done, rows, total
    rstream:sink:{orders}:<query>:parts                    a set: the names of the keys below
    rstream:sink:{orders}:<query>:<batch>:<run>:<partition>   marks, a hash: attempt.number → fingerprints of the rows
    rstream:sink:{orders}:<query>:<batch>:<run>:written    how many rows the run has written
    rstream:sink:{orders}:<query>:<batch>:<run>:claims     fingerprints, back to back (only after a killed run)
    rstream:sink:{orders}:<query>:carried                  the same (only while a batch is cut, see below)

and one record for each query, `rstream:sink:<query>`, a hash: stream → the last batch that wrote to it. Its empty
field, which is no stream's name, holds the last batch that is *closed*.

Every chunk is one transaction: its XADDs and its mark, WATCHing head and marks. So

- a retry or a speculative attempt reads from the marks of its partition which rows are written, in whatever order;
- a run that takes over from a killed run enters itself in the head, which stops the remaining tasks of the other run.
  Runs are ordered by their names, which the server assigns (batch_commit.py). The new run's tasks *claim* rows that
  earlier runs have written instead of writing them, each row once (WATCHing the claims). A row may be in another
  partition than before;
- when all tasks have ended, the driver compares the rows that the run has written and claimed with the tasks' rows.
  Then it writes `done` with the number of rows and the sum of their fingerprints, and deletes the marks. If the query
  is killed before Spark's commit log contains the batch, the batch is replayed: the replay writes nothing, and its
  rows are compared with both numbers.

When the next batch of the query is done, the ledger forgets streams that this batch does not write to. A query keeps
its record, and a head for each stream of its last batch, however many streams its rows name.

A task may stand still for any time, and wake up when the head that would stop it is forgotten. So a task creates a head
in three steps: it WATCHes the head, writes the stream into the record, and reads there which batch is closed. If its
own batch or a later one is closed, it stops. The driver closes a batch in the opposite order: it writes to the head of
every stream in the record, which breaks the WATCH, and then writes `closed` into the record, if the record has no new
stream. Either the task sees `closed`, or the driver sees the task's stream. No step spans two slots.

A job's driver creates the job's record before there are tasks, and removes it when the job is done. If there is no
record, the job is over. If the driver is killed, the keys of the job expire a week after their last use.

The source cuts a batch that kills its query (source/pending/poison_batch.py). Rows that an earlier run wrote of it may
belong to a piece that is a later micro-batch. The source's tasks report that, and lost entries, to the sink in the key
`keys.batch_kind_key`. Rows that earlier runs of a piece wrote and that the piece does not have are *carried* to the
next batches, which claim them like other written rows. If entries of a batch are lost, their written rows stay.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from spark_streams.base.numbers import parse_number
from spark_streams.connector.errors import LedgerError
from spark_streams.connector.keys import CLOSED, DONE, head_key
from spark_streams.connector.sink import refusals
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.fingerprint import Hashes
from spark_streams.connector.wire.connection import Argument

Command = tuple[Argument, ...]

JOB_SECONDS = 7 * 86_400  # until the keys of a job expire
NONE_CLOSED = -1  # what a job's record says while the job runs
_COUNTS = struct.Struct("<II")
HEAD_FIELDS = ("batch", "runs", DONE, "rows", "total")


@dataclass(frozen=True)
class Keys:
    """The ledger's keys for one stream and batch."""

    head: bytes
    parts: bytes
    batch: Batch

    @classmethod
    def for_stream(cls, stream: bytes, batch: Batch) -> Keys:
        """Return the keys, which are in the stream's own slot."""
        head = head_key(stream, batch.query)
        return cls(head, head + b":parts", batch)

    @property
    def carried(self) -> bytes:
        """Fingerprints of rows that are written and belong to a later piece of a batch that was cut."""
        return self.head + b":carried"

    def part(self, partition: int | str, run: str | None = None) -> bytes:
        """Return the key of a partition's marks, or of `claims` or `written` of the run."""
        return self.named(f"{self.batch.number}:{run or self.batch.run}:{partition}")

    def named(self, part: str) -> bytes:
        """Return the key that `parts` lists under this name."""
        return self.head + b":" + part.encode()


def number_in(value: str | bytes) -> int:
    """Return a number of the ledger; batches count from NONE_CLOSED. Raises LedgerError."""
    number = parse_number(value, minimum=NONE_CLOSED)
    if number is None:
        raise refusals.no_number(value)
    return number


@dataclass(frozen=True)
class QueryRecord:
    """A query's record. closed: the last batch that is closed; streams: by stream the last batch that wrote to it, or
    NONE_CLOSED if it is to be forgotten."""

    closed: int = NONE_CLOSED
    streams: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def read(cls, flat: Sequence[bytes]) -> QueryRecord:
        """Return the record, from the reply to HGETALL. Raises LedgerError."""
        numbers = {stream: number_in(number) for stream, number in zip(flat[0::2], flat[1::2], strict=True)}
        return cls(numbers.pop(CLOSED, NONE_CLOSED), numbers)


@dataclass(frozen=True)
class MarkKey:
    """A name in `parts`."""

    name: str  # `batch:run:kind`
    batch: int
    run: str
    kind: str  # a partition's number, `written` or `claims`

    @classmethod
    def read(cls, name: bytes) -> MarkKey:
        """Return the part of this name. Raises LedgerError."""
        text = name.decode()
        batch, run, kind = text.split(":")
        return cls(text, number_in(batch), run, kind)

    @property
    def has_marks(self) -> bool:
        return self.kind.isdigit()


class Role(Enum):
    """What a task does with a stream that it has rows for."""

    OPEN = "begin the batch there"
    TAKE_OVER = "go on where an earlier run of the batch was killed"
    JOIN = "write along with other tasks of its run"
    DONE = "nothing: the batch is complete"


@dataclass(frozen=True)
class LedgerHead:
    """The head of a stream's ledger."""

    batch: int | None = None  # that is open or was the last
    runs: tuple[str, ...] = ()  # of this batch, the owner last
    done: int | None = None  # the last batch that is complete
    rows: int = 0  # of that batch
    total: int = 0  # sum of the fingerprints of these rows

    @classmethod
    def read(cls, reply: Sequence[bytes | None]) -> LedgerHead:
        """Return the head, from the reply to HMGET of HEAD_FIELDS. Raises LedgerError."""
        batch, runs, done, rows, total = [None if value is None else value.decode() for value in reply]
        return cls(
            None if batch is None else number_in(batch),
            tuple(runs.split(",")) if runs else (),
            None if done is None else number_in(done),
            number_in(rows or "0"),
            number_in(total or "0"),
        )

    @property
    def last_done(self) -> int:
        """`done`, -1 if there is none."""
        return -1 if self.done is None else self.done

    def open_before(self, number: int) -> int | None:
        """Return an earlier batch than this one that was begun and is not done, if there is one."""
        return self.batch if self.batch is not None and self.last_done < self.batch < number else None

    def counts(self, keys: Keys, parts: Iterable[MarkKey]) -> list[Command]:
        """Return the commands that read how many rows each run of the open batch has written; `rows_in` adds them."""
        return [("GET", keys.named(part.name)) for part in parts if part.batch == self.batch and part.kind == "written"]

    def lacks(self, named: int, closed: int) -> bool:
        """Whether a batch is done by the record, and not by this head. named: the record's batch of the stream."""
        return self.last_done < named <= closed

    def role_of(self, batch: Batch, stream: str) -> Role:
        """Return what a task of this batch is to do. Raises LedgerError if it must not write."""
        if self.done is not None and self.done >= batch.number:
            if self.done == batch.number:
                return Role.DONE
            raise refusals.set_back(batch, stream, self.done)
        if self.batch is None or self.batch < batch.number:
            return Role.OPEN
        if self.batch > batch.number:
            raise refusals.later_batch(batch, stream, self.batch)
        if self.runs and self.runs[-1] == batch.run:
            return Role.JOIN
        if batch.run in self.runs or (self.runs and batch.run < self.runs[-1]):
            raise refusals.taken_over(batch, stream)
        return Role.TAKE_OVER

    def entered(self, keys: Keys) -> list[Command]:
        """Return the commands that enter a run in the head."""
        batch = keys.batch
        runs = ",".join([*(self.runs if self.batch == batch.number else ()), batch.run])
        return [("HSET", keys.head, "batch", batch.number, "runs", runs), *expiry(batch, keys.head)]


def rows_in(counts: Iterable[bytes | None]) -> int:
    """Return the sum of the replies to `Head.counts`. Raises LedgerError."""
    return sum(number_in(count or b"0") for count in counts)


def expiry(batch: Batch, *keys: Argument) -> list[Command]:
    """Return EXPIREs for the keys of a job; none for a query."""
    return [("EXPIRE", key, JOB_SECONDS) for key in keys] if batch.expires else []


def pack_mark(written: Hashes, claimed: Hashes) -> bytes:
    """Return a mark's bytes: two counts, then the fingerprints."""
    return _COUNTS.pack(len(written), len(claimed)) + written.astype("<u8").tobytes() + claimed.astype("<u8").tobytes()


def read_mark(mark: bytes) -> tuple[Hashes, Hashes]:
    """Return the fingerprints in a mark: (written, claimed). Raises LedgerError."""
    if len(mark) < _COUNTS.size or len(mark) != _COUNTS.size + 8 * sum(_COUNTS.unpack_from(mark)):
        raise LedgerError(
            "a mark of the sink's ledger cannot be read: another version wrote it, or another client changed it. "
            "Install that version again, or run the batch with delivery=at-least-once, which writes its rows that are "
            "in the stream a second time"
        )
    written, _ = _COUNTS.unpack_from(mark)
    hashes = np.frombuffer(mark, "<u8", offset=_COUNTS.size).astype(np.uint64)
    return hashes[:written], hashes[written:]
