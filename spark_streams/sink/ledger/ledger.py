"""The ledger: what the server remembers of a batch that is being written, and what that means. Pure.

    batch       a micro-batch of a query, a named write within its foreachBatch, or one job of `df.write`
    run         one execution of a batch by one driver; a batch that a killed query left behind is run again by the next
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

and one record a query, `rstream:sink:<query>`, a hash: stream → the last batch that wrote to it, and under the empty
name, which no stream has, the last batch that is *closed*.

Every chunk is one transaction: its XADDs and its mark, WATCHing head and marks. So

- a retry or a twin finds in the marks of its partition which rows are written, whatever their order;
- a run that takes over from a killed one enters itself in the head, which stops whatever is left of the other: runs
  are ordered by their names, which the server gives (runs.py). Its tasks *claim* rows that earlier runs have written
  instead of writing them, each once (WATCHing the claims), wherever the rows are now: the number of partitions may
  differ;
- when all tasks have ended, the driver holds what the run has written and claimed against what the tasks had, leaves
  `done` with the number of rows and the sum of their fingerprints, and drops the marks. A batch that is replayed after
  that (the query was killed before Spark's commit log) writes nothing and is held against both.

When the next batch of the query is done, streams that it does not write to are forgotten: what remains of a query is
its record, and a head for each stream of its last batch, however many streams its rows name. A task may stand still
for any time and wake up when the head that would stop it is forgotten. So a head is made in three steps: the task
WATCHes it, writes the stream into the record, and reads there which batch is closed: if that is its own one or a later
one, it stops. The driver closes a batch the other way round: it touches the head of every stream in the record, which
breaks the WATCH, then writes `closed` into the record, provided that no stream has come into it meanwhile. Either the
task sees `closed`, or the driver sees its stream. No step spans two slots.

A job's record is made by its driver, before there are tasks, and removed when the job is done: where there is none, the
job is over. What a job's driver left when it was killed expires a week after its last use.

A batch that kills its query is cut by the source (source/recovery/poison_batch.py): what an earlier run wrote of it may
belong to a piece that is a later micro-batch. The source's tasks tell the sink of that, and of lost entries, under
`keys.told_key`. What the earlier runs of a piece wrote and it does not have is *carried* to the next batches, which
claim it like anything else that is written. If entries of a batch are lost, what was written of them stays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from spark_streams.errors import LedgerError
from spark_streams.model.keys import CLOSED, key_beside
from spark_streams.model.numbers import whole
from spark_streams.sink.encode.fingerprint import Hashes
from spark_streams.sink.ledger import refusals
from spark_streams.sink.ledger.batch import Batch
from spark_streams.wire.connection.connection import Argument

Command = tuple[Argument, ...]

JOB_SECONDS = 7 * 86_400  # until the keys of a job expire
NONE_CLOSED = -1  # what a job's record says while the job runs
_COUNTS = struct.Struct("<II")
HEAD_FIELDS = ("batch", "runs", "done", "rows", "total")


@dataclass(frozen=True)
class Keys:
    """The ledger's keys for one stream and batch."""

    head: bytes
    parts: bytes
    batch: Batch

    @classmethod
    def of(cls, stream: bytes, batch: Batch) -> Keys:
        """In the stream's own slot: its hash tag, or all of it, or something that falls into the same slot."""
        head = key_beside(stream, "sink", batch.query)
        return cls(head, head + b":parts", batch)

    @property
    def carried(self) -> bytes:
        """What is written and belongs to a later piece of a batch that was cut."""
        return self.head + b":carried"

    def part(self, partition: int | str, run: str | None = None) -> bytes:
        """A partition's marks; `claims` and `written` of the whole run."""
        return self.named(f"{self.batch.number}:{run or self.batch.run}:{partition}")

    def named(self, part: str) -> bytes:
        """The key that stands in `parts` under this name."""
        return self.head + b":" + part.encode()


def number_in(value: str | bytes) -> int:
    """A number that the ledger holds; batches count from NONE_CLOSED. Raises LedgerError."""
    number = whole(value, least=NONE_CLOSED)
    if number is None:
        raise refusals.no_number(value)
    return number


@dataclass(frozen=True)
class Record:
    """A query's record, or its witness. closed: the last batch that is closed; streams: the last batch that wrote to
    each, in a witness the rows that each got of that batch."""

    closed: int = NONE_CLOSED
    streams: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def read(cls, flat: Sequence[bytes]) -> Record:
        """From HGETALL of its key. Raises LedgerError."""
        numbers = {stream: number_in(number) for stream, number in zip(flat[0::2], flat[1::2], strict=True)}
        return cls(numbers.pop(CLOSED, NONE_CLOSED), numbers)


@dataclass(frozen=True)
class Part:
    """A name in `parts`. what: a partition's number, `written` or `claims`."""

    name: str
    batch: int
    run: str
    what: str

    @classmethod
    def read(cls, name: bytes) -> Part:
        """From the set's member."""
        text = name.decode()
        batch, run, what = text.split(":")
        return cls(text, number_in(batch), run, what)

    @property
    def has_marks(self) -> bool:
        return self.what.isdigit()


class Role(Enum):
    """What a task is to do with a stream that it has rows for."""

    OPEN = "begin the batch there"
    TAKE_OVER = "go on where an earlier run of the batch was killed"
    JOIN = "write along with other tasks of its run"
    DONE = "nothing: the batch is complete"


@dataclass(frozen=True)
class Head:
    """What the head says. batch: the one that is open or was the last; runs: those that have executed it, the owner
    last; done: the last batch that is complete, with its rows and the sum of their fingerprints."""

    batch: int | None = None
    runs: tuple[str, ...] = ()
    done: int | None = None
    rows: int = 0
    total: int = 0

    @classmethod
    def read(cls, reply: Sequence[bytes | None]) -> Head:
        """From HMGET of HEAD_FIELDS."""
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
        """`done`, -1 where there is none."""
        return -1 if self.done is None else self.done

    def open_before(self, number: int) -> int | None:
        """The earlier batch than this one that was begun and never done, if there is one."""
        return self.batch if self.batch is not None and self.last_done < self.batch < number else None

    def counts(self, keys: Keys, parts: Iterable[Part]) -> list[Command]:
        """GET how many rows each run of the open batch has written; `rows_in` adds the replies."""
        return [("GET", keys.named(one.name)) for one in parts if one.batch == self.batch and one.what == "written"]

    def lacks(self, named: int, closed: int) -> bool:
        """Whether a batch is done here by the record, and not by this head. named: the record's batch of the stream."""
        return self.last_done < named <= closed

    def role_of(self, batch: Batch, stream: str) -> Role:
        """What a task of this batch is to do. Raises LedgerError where it must not write."""
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
        """The commands that enter a run in the head."""
        batch = keys.batch
        runs = ",".join([*(self.runs if self.batch == batch.number else ()), batch.run])
        return [("HSET", keys.head, "batch", batch.number, "runs", runs), *expiry(batch, keys.head)]


def rows_in(counts: Iterable[bytes | None]) -> int:
    """The sum of what the keys of `Head.counts` hold. Raises LedgerError."""
    return sum(number_in(count or b"0") for count in counts)


def expiry(batch: Batch, *keys: Argument) -> list[Command]:
    """EXPIREs for the keys of a job."""
    return [("EXPIRE", key, JOB_SECONDS) for key in keys] if batch.expires else []


def pack_mark(written: Hashes, claimed: Hashes) -> bytes:
    """Two counts, then the fingerprints."""
    return _COUNTS.pack(len(written), len(claimed)) + written.astype("<u8").tobytes() + claimed.astype("<u8").tobytes()


def read_mark(mark: bytes) -> tuple[Hashes, Hashes]:
    """(written, claimed). Raises LedgerError."""
    if len(mark) < _COUNTS.size or len(mark) != _COUNTS.size + 8 * sum(_COUNTS.unpack_from(mark)):
        raise LedgerError(
            "a mark of the sink's ledger cannot be read: another version wrote it, or it was changed; put that version "
            "back, or run the batch with delivery=at-least-once, which writes what is in the stream of it a second time"
        )
    written, _ = _COUNTS.unpack_from(mark)
    hashes = np.frombuffer(mark, "<u8", offset=_COUNTS.size).astype(np.uint64)
    return hashes[:written], hashes[written:]
