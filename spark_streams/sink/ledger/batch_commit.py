"""The end of a batch, on the driver: what the tasks say is held against the ledger, `done` is left, marks go.

Called when every task has ended well and before Spark's commit log has the batch. Running it again is harmless, and so
is a driver that stands still anywhere in it while another one goes on.

    → HGETALL record                                                   the streams of this batch and of the one before
    → HGETALL witness   HMGET head …   MULTI   DEL witness …   EXEC    in a cluster (witness.py)
    → WATCH heads   HMGET head …   SMEMBERS parts   GET written …      what is written to them
    → MULTI   DEL head   HSET head done …   UNLINK marks …   EXEC      nil: somebody else was there, once more
    → WATCH record   HGETALL record                                    has a stream come into it meanwhile? Once more
    → MULTI   HSET record closed   HDEL record …   EXEC
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.model.keys import CLOSED
from spark_streams.model.micro_batch import MicroBatchName
from spark_streams.sink.ledger import refusals
from spark_streams.sink.ledger.balance import Balance, InLedger, Total
from spark_streams.sink.ledger.batch import Batch, Kind
from spark_streams.sink.ledger.ledger import HEAD_FIELDS, NONE_CLOSED, Command, Head, Keys, Part, Record, rows_in
from spark_streams.sink.ledger.replicas import wait_for_replicas
from spark_streams.sink.ledger.witness import leave_word, place_of, require_all_there
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.multi_exec import transact
from spark_streams.wire.session import Session

TOGETHER = 500  # streams in one transaction, which only saves round trips: each stands for itself


def close_batch(
    address: Address,
    batch: Batch,
    totals: Mapping[bytes, Total],
    replicas: int | None = None,
    together: int = TOGETHER,
) -> None:
    """totals: what all tasks of the batch had, by stream; replicas: how many must have the end of the batch, too;
    together: how many streams are dealt with in one transaction.

    Raises LedgerError where earlier executions of the batch wrote rows that this one did not have, or where the server
    has lost some, of it or of the batch before; ReplicationError.
    """
    _until_sealed(address, _BatchCommit(batch, totals, False, replicas, together))


def pass_over(address: Address, batch: Batch) -> None:
    """The batch is complete, and was written without the ledger: what that says of it, where there is one, is void."""
    _until_sealed(address, _BatchCommit(batch, {}, True))


def rows_written(server: Server, stream: str, query: str, number: int) -> int:
    """Rows of this micro-batch that all its runs have written to the stream so far, for whoever shows progress. Raises
    LedgerError, ServerError."""
    keys = Keys.of(stream.encode(), Batch.of_query(MicroBatchName(query, number), ""))
    fields, names = server.execute_all([("HMGET", keys.head, *HEAD_FIELDS), ("SMEMBERS", keys.parts)])
    head = Head.read(fields)
    if head.done == number:
        return head.rows
    if head.batch != number:
        return 0
    parts = [Part.read(name) for name in names]
    return rows_in(server.execute_all(head.counts(keys, parts)))


def _until_sealed(address: Address, commit: _BatchCommit) -> None:
    with Session(address, is_known=True) as session:
        while not session.run(commit.run):
            pass


@dataclass
class _BatchCommit:
    """is_void: the batch was written without the ledger; sealing: a job's record may be gone because of us."""

    batch: Batch
    totals: Mapping[bytes, Total]
    is_void: bool
    replicas: int | None = None
    together: int = TOGETHER
    sealing: bool = False

    def run(self, server: Server) -> bool:
        """One attempt; False where something has changed meanwhile."""
        batch, totals, is_void = self.batch, self.totals, self.is_void
        place = None if is_void else place_of(server, batch)
        told_elsewhere: list[Command] = [("HGETALL", place)] if place else []
        flat, told, *witness = server.execute_all([("HGETALL", batch.record), batch.asks_kind, *told_elsewhere])
        record, kind = Record.read(flat), batch.kind(told)
        is_closed = record.closed == batch.number
        if not flat and (is_void or (batch.expires and self.sealing)):
            self._forget_job(server)
            return True
        if record.closed > batch.number:
            if is_void:
                return True
            raise refusals.late_closing(batch, record.closed)
        if not is_void and not is_closed:
            require_all_there(server, batch, record, Record.read(witness[0]) if place else Record())
            if place:
                leave_word(server, place, batch, totals)
        forgotten: list[bytes] = []
        for streams in server.together(list({**totals, **record.streams}), lambda stream: stream):
            for start in range(0, len(streams), self.together):
                balances = self._look(server, record, kind, streams[start : start + self.together])
                commands = [command for balance in balances for command in balance.commands()]
                if is_closed or not commands:
                    server.execute("UNWATCH")
                elif transact(server, commands) is None:
                    return False
                forgotten += [balance.stream for balance in balances if balance.is_forgotten]
        if not is_closed and not self._seal(server, record, forgotten):
            return False
        if self.replicas is not None:
            wait_for_replicas(server, self.replicas, [*totals, batch.record.encode()])
        return True

    def _look(self, server: Server, record: Record, kind: Kind, streams: Sequence[bytes]) -> list[Balance]:
        """WATCH the heads of these streams, and read what is written to them."""
        keys = [Keys.of(stream, self.batch) for stream in streams]
        _, *replies = server.execute_all([
            ("WATCH", *[of_stream.head for of_stream in keys]),
            *[question for of_stream in keys for question in InLedger.questions(of_stream)],
        ])  # fmt: skip
        each = len(replies) // len(keys)
        balances: list[Balance] = []
        for place, (stream, of_stream) in enumerate(zip(streams, keys, strict=True)):
            found = InLedger.read(replies[place * each : (place + 1) * each])
            found = found.with_earlier(server.execute_all(found.earlier_questions(of_stream, kind)))
            had, named = self.totals.get(stream), record.streams.get(stream, NONE_CLOSED)
            balances.append(Balance(self.batch, kind, stream, had, named, record.closed, found, self.is_void))
        return balances

    def _seal(self, server: Server, before: Record, forgotten: Sequence[bytes]) -> bool:
        """Write into the record that the batch is closed. before: the record as it was."""
        record = self.batch.record
        seen = server.execute_all([("WATCH", record), ("HGETALL", record)])[-1]
        if Record.read(seen) != before:
            server.execute("UNWATCH")
            return False
        self.sealing = True
        last: list[Command] = [("UNLINK", record)]
        if not self.batch.expires:
            last = [("HSET", record, CLOSED, self.batch.number)]
            if forgotten:
                last.append(("HDEL", record, *forgotten))
        if transact(server, last) is None:
            return False
        self._forget_job(server)
        return True

    def _forget_job(self, server: Server) -> None:
        """Nobody asks for the heads of a job that is over."""
        if self.batch.expires and self.totals:
            server.execute("UNLINK", *[Keys.of(stream, self.batch).head for stream in self.totals])
