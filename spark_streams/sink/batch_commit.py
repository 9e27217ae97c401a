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

from spark_streams.keys import CLOSED
from spark_streams.sink import refusals
from spark_streams.sink.balance import Balance, InLedger, Total
from spark_streams.sink.batch import Batch, Kind
from spark_streams.sink.ledger import NONE_CLOSED, Command, Keys, Record
from spark_streams.sink.replicas import wait_for_replicas
from spark_streams.sink.witness import leave_word, place_of, require_all_there
from spark_streams.wire.address import Address
from spark_streams.wire.multi_exec import transact
from spark_streams.wire.server import Server
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
    _until_sealed(address, _BatchCommit(batch, totals, replicas, together))


def pass_over(address: Address, batch: Batch) -> None:
    """The batch is complete, and was written without the ledger: what that says of it, where there is one, is void."""
    _until_sealed(address, _BatchCommit(batch, None, None, TOGETHER))


def _until_sealed(address: Address, commit: _BatchCommit) -> None:
    with Session(address, is_known=True) as session:
        while not session.run(commit.run):
            pass


class _BatchCommit:
    """totals: None where the batch was written without the ledger."""

    def __init__(self, batch: Batch, totals: Mapping[bytes, Total] | None, replicas: int | None, together: int) -> None:
        self._batch = batch
        self._replicas = replicas
        self._together = together
        self._totals = totals or {}
        self._is_void = totals is None
        self._sealing = False  # a job's record may be gone because of us

    def run(self, server: Server) -> bool:
        """One attempt; False where something has changed meanwhile."""
        batch = self._batch
        place = None if self._is_void else place_of(server, batch)
        told_elsewhere: list[Command] = [("HGETALL", place)] if place else []
        flat, told, *witness = server.execute_all([("HGETALL", batch.record), batch.asks_kind, *told_elsewhere])
        record = Record.read(flat)
        closed = record.closed
        if not flat and (self._is_void or (batch.expires and self._sealing)):
            self._forget_job(server)
            return True
        if closed > batch.number:
            if self._is_void:
                return True
            raise refusals.late_closing(batch, closed)
        if not self._is_void and closed != batch.number:
            require_all_there(server, batch, record, Record.read(witness[0]) if place else Record())
            if place:
                leave_word(server, place, batch, self._totals)
        kind = batch.kind(told)
        old: list[bytes] = []
        for streams in server.together(list({**self._totals, **record.streams}), lambda stream: stream):
            for start in range(0, len(streams), self._together):
                balances = self._look(server, streams[start : start + self._together], record.streams, kind)
                if not self._write(server, balances, closed):
                    return False
                old += [balance.stream for balance in balances if self._is_old(balance)]
        if closed != batch.number and not self._seal(server, record, old):
            return False
        if self._replicas is not None:
            wait_for_replicas(server, self._replicas, [*self._totals, batch.record.encode()])
        return True

    def _look(self, server: Server, streams: Sequence[bytes], named: Mapping[bytes, int], kind: Kind) -> list[Balance]:
        keys = [Keys.of(stream, self._batch) for stream in streams]
        _, *replies = server.execute_all([
            ("WATCH", *[of_stream.head for of_stream in keys]),
            *[question for of_stream in keys for question in InLedger.questions(of_stream)],
        ])  # fmt: skip
        each = len(replies) // len(keys)
        found = [InLedger.read(replies[start : start + each]) for start in range(0, len(replies), each)]
        return [
            Balance(self._batch, kind, stream, self._totals.get(stream), named.get(stream, NONE_CLOSED), in_ledger)
            for stream, in_ledger in zip(streams, found, strict=True)
        ]

    def _is_old(self, balance: Balance) -> bool:
        """Whether this batch leaves the stream behind."""
        return (self._is_void or not balance.is_ours) and balance.last <= self._batch.number

    def _write(self, server: Server, balances: Sequence[Balance], closed: int) -> bool:
        """Write what is to be written for these streams; False where one was touched since it was looked at."""
        commands: list[Command] = []
        for balance in balances:
            commands += self._commands(server, balance, closed)
        if closed == self._batch.number or not commands:
            server.execute("UNWATCH")
            return True
        return transact(server, commands) is not None

    def _commands(self, server: Server, balance: Balance, closed: int) -> list[Command]:
        """What is to be written for one stream. Raises LedgerError."""
        if balance.last > self._batch.number:
            if self._is_void:
                return []
            raise refusals.late_closing(self._batch, balance.last)
        if self._is_old(balance):
            return balance.leave_behind(closed, None if self._is_void else server.execute_all(balance.counts()))
        if self._batch.number in (closed, balance.head.done):
            balance.compare(closed == self._batch.number)
            return []
        marks = server.execute_all([("HVALS", key) for key in balance.earlier_marks()])
        return balance.finish([mark for of_part in marks for mark in of_part])

    def _seal(self, server: Server, before: Record, old: Sequence[bytes]) -> bool:
        """Write into the record that the batch is closed. before: the record as it was, old: the streams that it
        forgets."""
        record = self._batch.record
        seen = server.execute_all([("WATCH", record), ("HGETALL", record)])[-1]
        if Record.read(seen) != before:
            server.execute("UNWATCH")
            return False
        self._sealing = True
        last: list[Command] = [("UNLINK", record)]
        if not self._batch.expires:
            last = [("HSET", record, CLOSED, self._batch.number)]
            if old:
                last.append(("HDEL", record, *old))
        if transact(server, last) is None:
            return False
        self._forget_job(server)
        return True

    def _forget_job(self, server: Server) -> None:
        """Nobody asks for the heads of a job that is over."""
        if self._batch.expires and self._totals:
            server.execute("UNLINK", *[Keys.of(stream, self._batch).head for stream in self._totals])
