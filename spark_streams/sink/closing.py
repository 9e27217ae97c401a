"""The end of a batch, on the driver: what the tasks say is held against the ledger, `done` is left, marks go.

Called when every task has ended well and before Spark's commit log has the batch. Running it again is harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spark_streams.errors import LedgerError, RStreamError
from spark_streams.sink.fingerprint import Hashes, Multiset
from spark_streams.sink.ledger import HEAD_FIELDS, Batch, Command, Head, Keys, expiry, read_mark
from spark_streams.wire.address import Address
from spark_streams.wire.connection import Connection, Reply, ReplyError
from spark_streams.wire.link import Link
from spark_streams.wire.retry import LIMIT

_log = logging.getLogger("spark_streams.sink")


@dataclass(frozen=True)
class Total:
    """What tasks had for a stream. rows: how many; total: the sum of their fingerprints, mod 2^64."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Total) -> Total:
        return Total(self.rows + other.rows, (self.total + other.total) % 2**64)


def close_batch(address: Address, batch: Batch, totals: Mapping[bytes, Total]) -> None:
    """totals: what all tasks of the batch had, by stream.

    Raises LedgerError where earlier executions of the batch wrote rows that this one did not have.
    """
    with Link(address, LIMIT) as link:
        while True:
            try:
                _Closing(link.server, batch, totals).run()
            except RStreamError as error:
                link.again(error)
            else:
                return


def _fingerprints(value: bytes | None) -> Hashes:
    return np.frombuffer(value or b"", "<u8").astype(np.uint64)


class _Closing:
    def __init__(self, server: Connection, batch: Batch, totals: Mapping[bytes, Total]) -> None:
        self._server = server
        self._batch = batch
        self._totals = totals
        self._narrowed = False  # whether the batch is a piece of what earlier runs of it were

    def run(self) -> None:
        flat, told = self._ask([("HGETALL", self._batch.index), ("GET", self._batch.told)])
        self._narrowed = told == str(self._batch.number).encode()
        index = {stream: int(number) for stream, number in zip(flat[0::2], flat[1::2], strict=True)}
        # Also those to which only an earlier run has written.
        streams = list({**self._totals, **{s: None for s, number in index.items() if number == self._batch.number}})
        keys = [Keys.of(stream, self._batch) for stream in streams]
        heads = self._ask([("HMGET", one.head, *HEAD_FIELDS) for one in keys])
        parts = self._ask([("SMEMBERS", one.parts) for one in keys])
        commands: list[Command] = []
        for stream, one, head, names in zip(streams, keys, heads, parts, strict=True):
            commands += self._close(stream, one, Head.read(head), [name.decode() for name in names])
        old = [s for s, number in index.items() if number < self._batch.number and s not in self._totals]
        old = [] if self._narrowed else old
        # This batch runs, so Spark's commit log has the one before it: what that wrote to needs no head any more.
        if old:
            forgotten = [Keys.of(s, self._batch) for s in old]
            commands += [("UNLINK", *[key for one in forgotten for key in (one.head, one.carried)])]
            commands += [("HDEL", self._batch.index, *old)]
        self._ask(commands)

    def _ask(self, commands: Sequence[Command]) -> list[Reply]:
        replies = self._server.pipeline(commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise self._server.error_of(reply, command)
        return replies

    def _close(self, stream: bytes, keys: Keys, head: Head, parts: Sequence[str]) -> list[Command]:
        """What is to be done for one stream. Raises LedgerError."""
        batch, had = self._batch, self._totals.get(stream, Total())
        shown = stream.decode("utf-8", "replace")
        if head.done == batch.number:
            if (head.rows, head.total) != (had.rows, had.total):
                raise LedgerError(
                    f"batch {batch.number} of query {batch.query} was written to stream {shown!r} before, and its "
                    f"{had.rows} rows are not the {head.rows} that were written then: the query gives other rows each "
                    f"time it runs, and the first ones stay; {self._remedy(keys)}"
                )
            return []
        carried = self._carry(shown, keys, self._written_before(keys, head, parts))
        accounted = self._accounted(keys)
        if accounted != had.rows:
            raise LedgerError(
                f"batch {batch.number} of query {batch.query} has {had.rows} rows for stream {shown!r}, and the ledger "
                f"knows of {accounted}: a retried task had other rows, or the ledger was deleted meanwhile; "
                f"{self._remedy(keys)}"
            )
        gone = [keys.parts, *[keys.named(part) for part in parts]]
        kept = ("HSET", keys.head, "batch", batch.number, "done", batch.number, "rows", had.rows, "total", had.total)
        return [
            ("MULTI",), ("DEL", keys.head), kept, *expiry(batch, keys.head), *carried, ("UNLINK", *gone), ("EXEC",)
        ]  # fmt: skip

    def _accounted(self, keys: Keys) -> int:
        """How many rows this run has written or claimed."""
        written, claims = self._ask([("GET", keys.part("written")), ("STRLEN", keys.part("claims"))])
        return int(written or 0) + int(claims) // 8

    def _written_before(self, keys: Keys, head: Head, parts: Sequence[str]) -> list[bytes]:
        """The marks of earlier runs of this batch."""
        runs = head.runs[:-1] if head.runs and head.runs[-1] == self._batch.run else head.runs
        prefixes = tuple(f"{self._batch.number}:{run}:" for run in runs)
        earlier = [
            keys.named(part) for part in parts if part.startswith(prefixes) and part.rpartition(":")[2].isdigit()
        ]
        if head.batch != self._batch.number or not prefixes or not earlier:
            return []
        return [mark for values in self._ask([("HVALS", key) for key in earlier]) for mark in values]

    def _carry(self, shown: str, keys: Keys, marks: Sequence[bytes]) -> list[Command]:
        """What becomes of rows that are written and that this run has not claimed: only a batch that was cut may leave
        some, for its other pieces. Raises LedgerError."""
        carried, claims = self._ask([("GET", keys.carried), ("GET", keys.part("claims"))])
        written = [read_mark(mark)[0] for mark in marks]
        before = _fingerprints(carried)
        left = Multiset()
        left.add(np.concatenate([before, *written]))
        left.remove(_fingerprints(claims))
        if not len(left):
            return [("UNLINK", keys.carried)] if len(before) else []
        if self._narrowed:
            return [("SET", keys.carried, left.hashes().astype("<u8").tobytes())]
        if len(left) > len(before):
            batch = self._batch
            raise LedgerError(
                f"an earlier run of batch {batch.number} of query {batch.query} wrote {len(left)} rows to stream "
                f"{shown!r} that this run does not have: the query gives other rows each time it runs; "
                f"{self._remedy(keys)}"
            )
        _log.warning("stream %r: %d rows of entries that killed the query later stay in it", shown, len(left))
        return [("UNLINK", keys.carried)]

    def _remedy(self, keys: Keys) -> str:
        return (
            "make it repeatable (no rand(), uuid(), current time or unordered limit). To go on as it is, delete key "
            f"{keys.head.decode('utf-8', 'replace')!r} or choose delivery=at-least-once: the batch is then written anew"
        )
