"""The end of a batch, on the driver: compare the tasks' rows with the ledger, write `done`, delete the marks.

The driver calls it when all tasks have succeeded, before Spark's commit log contains the batch. It may run again. A
driver may also stop anywhere in it while another driver goes on.

    → HGETALL record                                                   the streams of this batch and of the one before
    → HMGET head …                                                     is the batch before there? (lost_batches.py)
    → WATCH heads   HMGET head …   SMEMBERS parts   GET written …      the rows that are written to them
    → MULTI   DEL head   HSET head done …   UNLINK marks …   EXEC      nil: another client changed a head; try again
    → WATCH record   HGETALL record                                    try again if the record has a new stream
    → MULTI   HSET record closed   EXEC                                streams without rows have no batch any more
    → WATCH heads   HMGET head …   MULTI   UNLINK head …   EXEC        of streams without rows
    → WATCH record   HMGET record …   MULTI   HDEL record …   EXEC     these streams

As long as the record names a batch of a stream, a missing head means that the server has lost it. If the driver is
killed before it has deleted a head and the name, the next batch does so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.connector.keys import CLOSED
from spark_streams.connector.micro_batch import MicroBatchName
from spark_streams.connector.sink.ledger import refusals
from spark_streams.connector.sink.ledger.balance import Balance, LedgerContents, Total
from spark_streams.connector.sink.ledger.batch import Batch, SourceReport
from spark_streams.connector.sink.ledger.ledger import (
    HEAD_FIELDS,
    NONE_CLOSED,
    Command,
    Keys,
    LedgerHead,
    MarkKey,
    QueryRecord,
    rows_in,
)
from spark_streams.connector.sink.ledger.lost_batches import require_nothing_lost
from spark_streams.connector.sink.ledger.replicas import wait_for_replicas
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.multi_exec import transact
from spark_streams.connector.wire.session import Session

STREAMS_PER_TRANSACTION = 500  # only saves round trips: the streams are independent


def close_batch(
    address: Address,
    batch: Batch,
    totals: Mapping[bytes, Total],
    replicas: int | None = None,
    together: int = STREAMS_PER_TRANSACTION,
) -> None:
    """Close a batch. totals: the rows of all its tasks, by stream; replicas: how many must have the end of the batch,
    too; together: streams per transaction.

    Raises LedgerError if an earlier execution of the batch wrote rows that this one did not have, or if the server has
    lost rows of this batch or of the batch before; ReplicationError.
    """
    _until_sealed(address, _BatchCommit(batch, totals, False, replicas, together))


def void_batch(address: Address, batch: Batch) -> None:
    """Void the ledger of a batch that is complete and was written without it."""
    _until_sealed(address, _BatchCommit(batch, {}, True))


def rows_written(server: Server, stream: str, query: str, number: int) -> int:
    """Return how many rows all runs of this micro-batch have written to the stream so far, for progress displays.
    Raises LedgerError, ServerError."""
    keys = Keys.for_stream(stream.encode(), Batch.of_query(MicroBatchName(query, number), ""))
    fields, names = server.execute_all([("HMGET", keys.head, *HEAD_FIELDS), ("SMEMBERS", keys.parts)])
    head = LedgerHead.read(fields)
    if head.done == number:
        return head.rows
    if head.batch != number:
        return 0
    parts = [MarkKey.read(name) for name in names]
    return rows_in(server.execute_all(head.counts(keys, parts)))


def _until_sealed(address: Address, commit: _BatchCommit) -> None:
    with Session(address, is_known=True) as session:
        while not session.run(commit.run):
            pass


@dataclass
class _BatchCommit:
    """is_void: the batch was written without the ledger; sealing: this commit may have removed the job's record."""

    batch: Batch
    totals: Mapping[bytes, Total]
    is_void: bool
    replicas: int | None = None
    together: int = STREAMS_PER_TRANSACTION
    sealing: bool = False

    def run(self, server: Server) -> bool:
        """Try once. Return False if the ledger has changed meanwhile."""
        batch, totals, is_void = self.batch, self.totals, self.is_void
        flat, kind_reply = server.execute_all([("HGETALL", batch.record), batch.kind_command])
        record, kind = QueryRecord.read(flat), batch.read_kind(kind_reply)
        is_closed = record.closed == batch.number
        if not flat and (is_void or (batch.expires and self.sealing)):
            self._forget_job(server)
            return True
        if record.closed > batch.number:
            if is_void:
                return True
            raise refusals.late_closing(batch, record.closed)
        if not is_void and not is_closed:
            require_nothing_lost(server, batch, record)
        forgotten: list[bytes] = []
        for streams in server.together(list({**totals, **record.streams}), lambda stream: stream):
            for start in range(0, len(streams), self.together):
                balances = self._read_balances(server, record, kind, streams[start : start + self.together])
                commands = [command for balance in balances for command in balance.commands()]
                if is_closed or not commands:
                    server.execute("UNWATCH")
                elif transact(server, commands) is None:
                    return False
                forgotten += [balance.stream for balance in balances if balance.is_forgotten]
        if not is_closed:
            if not self._seal(server, record, forgotten):
                return False
            if forgotten and not batch.expires:
                self._delete_names(server, self._delete_heads(server, forgotten))
        if self.replicas is not None:
            wait_for_replicas(server, self.replicas, [*totals, batch.record.encode()])
        return True

    def _read_balances(
        self, server: Server, record: QueryRecord, kind: SourceReport, streams: Sequence[bytes]
    ) -> list[Balance]:
        """WATCH the heads of these streams, and read their ledgers."""
        keys = [Keys.for_stream(stream, self.batch) for stream in streams]
        _, *replies = server.execute_all([
            ("WATCH", *[of_stream.head for of_stream in keys]),
            *[question for of_stream in keys for question in LedgerContents.read_commands(of_stream)],
        ])  # fmt: skip
        per_stream = len(replies) // len(keys)
        balances: list[Balance] = []
        for place, (stream, of_stream) in enumerate(zip(streams, keys, strict=True)):
            contents = LedgerContents.read(replies[place * per_stream : (place + 1) * per_stream])
            earlier = server.execute_all(contents.earlier_commands(of_stream, kind))
            contents = contents.with_earlier(earlier, self.batch, kind)
            received, named = self.totals.get(stream), record.streams.get(stream, NONE_CLOSED)
            balances.append(Balance(self.batch, kind, stream, received, named, record.closed, contents, self.is_void))
        return balances

    def _seal(self, server: Server, before: QueryRecord, forgotten: Sequence[bytes]) -> bool:
        """Write into the record that the batch is closed. before: the record when it was read."""
        record = self.batch.record
        seen = server.execute_all([("WATCH", record), ("HGETALL", record)])[-1]
        if QueryRecord.read(seen) != before:
            server.execute("UNWATCH")
            return False
        self.sealing = True
        last: list[Command] = [("UNLINK", record)]
        if not self.batch.expires:
            last = [("HSET", record, CLOSED, self.batch.number)]
            if forgotten:
                last.append(("HSET", record, *[word for stream in forgotten for word in (stream, NONE_CLOSED)]))
        if transact(server, last) is None:
            return False
        self._forget_job(server)
        return True

    def _delete_heads(self, server: Server, streams: Sequence[bytes]) -> list[bytes]:
        """Delete the heads of these streams, unless a later batch has begun there: another driver may have gone on.
        Return the streams that have no head now."""
        without_head: list[bytes] = []
        for slot in server.together(streams, lambda stream: stream):
            for start in range(0, len(slot), self.together):
                part = slot[start : start + self.together]
                keys = [Keys.for_stream(stream, self.batch).head for stream in part]
                _, *replies = server.execute_all([
                    ("WATCH", *keys), *[("HMGET", key, *HEAD_FIELDS) for key in keys]
                ])  # fmt: skip
                heads = list(map(LedgerHead.read, replies))
                number = self.batch.number
                unused = [key for key, head in zip(keys, heads, strict=True) if head.batch == head.done == number]
                if not unused:
                    server.execute("UNWATCH")
                elif transact(server, [("UNLINK", *unused)]) is None:
                    continue
                without_head += [
                    stream
                    for stream, key, head in zip(part, keys, heads, strict=True)
                    if key in unused or head == LedgerHead()
                ]
        return without_head

    def _delete_names(self, server: Server, streams: Sequence[bytes]) -> None:
        """Delete the names of these streams from the record, unless a later batch has begun there."""
        if not streams:
            return
        record = self.batch.record
        numbers = server.execute_all([("WATCH", record), ("HMGET", record, *streams)])[-1]
        if unused := [s for s, number in zip(streams, numbers, strict=True) if number == b"%d" % NONE_CLOSED]:
            transact(server, [("HDEL", record, *unused)])
        else:
            server.execute("UNWATCH")

    def _forget_job(self, server: Server) -> None:
        """Delete the heads of a job that is over: they are not read again."""
        if self.batch.expires and self.totals:
            server.execute("UNLINK", *[Keys.for_stream(stream, self.batch).head for stream in self.totals])
