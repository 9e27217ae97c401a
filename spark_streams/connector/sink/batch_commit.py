"""A batch on the driver: its run begins before there are tasks, and it ends when all of them have succeeded.

**Begin.** The server decides which of two runs began later. A run's name begins with its number, so names sort in the
order in which runs began, independent of the drivers' clocks:

    rstream:runs    the highest number of a run so far: microseconds of the server's clock, and always higher than the
                    number before; if the key is lost, numbers continue from the clock

**End**: compare the tasks' rows with the ledger, write `done`, delete the marks, before Spark's commit log contains the
batch. It may run again. A driver may also stop anywhere in it while another driver goes on.

    → HGETALL record                                                   the streams of this batch and of the one before
    → HMGET head …                                                     is the batch before there? (see below)
    → WATCH heads   HMGET head …   SMEMBERS parts   GET written …      the rows that are written to them
    → MULTI   DEL head   HSET head done …   UNLINK marks …   EXEC      nil: another client changed a head; try again
    → WATCH record   HGETALL record                                    try again if the record has a new stream
    → MULTI   HSET record closed   EXEC                                streams without rows have no batch any more
    → WATCH heads   HMGET head …   MULTI   UNLINK head …   EXEC        of streams without rows
    → WATCH record   HMGET record …   MULTI   HDEL record …   EXEC     these streams
    → WAIT                                                             if option waitReplicas is set

As long as the record names a batch of a stream, a missing head means that the server has lost it. If the driver is
killed before it has deleted a head and the name, the next batch does so.

If a replica that lagged behind becomes the master, it may lack the rows of a batch together with their ledger, because
a stream and its ledger are on one node. Two things show that:

- In a cluster, the query's record may be on another node than a stream: it names the last batch of the stream.
- Otherwise Spark's commit log does. A batch begins when the one before it is in the commit log, and each batch is
  closed, also without rows (S80). So the record's node has a trace of it: in the record, or in the head of a stream.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.connector.errors import ReplicationError, TakenError, UnsupportedError
from spark_streams.connector.keys import CLOSED, RUNS, MicroBatchName, key_beside
from spark_streams.connector.sink import ledger, refusals
from spark_streams.connector.sink.balance import Balance, LedgerContents, Total
from spark_streams.connector.sink.batch import Batch, SourceReport
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import drops_any_key, evicting_policy, find_worst_policy
from spark_streams.connector.wire.connection import Reply, Server
from spark_streams.connector.wire.lease import Lease
from spark_streams.connector.wire.named_errors import ASK
from spark_streams.connector.wire.replies import is_forbidden, milliseconds, portions_of, transact
from spark_streams.connector.wire.session import Session

Ready = Callable[[Server], object]  # prepares the streams before anything is written; may be run again
STREAMS_PER_TRANSACTION = 500  # only saves round trips: the streams are independent
_log = logging.getLogger("spark_streams.sink")


def run_name(number: int) -> str:
    return f"r{number:020d}-{secrets.token_hex(4)}"


def begin_run(address: Address, ready: Ready = lambda server: None) -> str:
    """Begin a run of a query's batch, and return its name.

    Raises UnsupportedError if the server may evict keys, RetriesExhaustedError, ServerReplyError, and the errors of
    `ready`.
    """
    with Session(address, is_known=True) as session:
        session.run(ready)
        while (number := session.run(_next_number)) is None:
            pass
    return run_name(number)


def begin_job(address: Address, ready: Ready = lambda server: None) -> Batch:
    """Begin a job: create its record, and return its batch. Raises the errors of begin_run."""
    batch = Batch.of_job(secrets.token_hex(8))
    with Session(address) as session:
        session.run(ready)
        session.run(lambda server: _make_record(server, batch))
    return batch


def connect_once(address: Address, is_known: bool, ready: Ready) -> None:
    """Connect once on the driver: an error shows here, while tasks wait for an unreachable server. is_known: as in
    Session. Raises ServerError."""
    with Session(address, is_known=is_known) as session:
        session.run(ready)


def _make_record(server: Server, batch: Batch) -> None:
    """Create a job's record. Raises UnsupportedError."""
    policy = _require_memory(server.address, evicting_policy(server))
    if policy.startswith("volatile"):
        _log.warning(
            "the server at %s evicts keys that expire when its memory is full (maxmemory-policy %s), and the keys of a "
            "job's ledger expire. Make sure that its memory does not fill up before the job has ended",
            server.address, policy,
        )  # fmt: skip
    server.execute_all(
        [("HSET", batch.record, CLOSED, ledger.NONE_CLOSED), ("EXPIRE", batch.record, ledger.JOB_SECONDS)]
    )


def _next_number(server: Server) -> int | None:
    """Return the next run's number; None if another driver was faster."""
    home = server.connection_for(RUNS)  # the node whose clock is used
    commands = [("WATCH", RUNS), ("GET", RUNS), ("TIME",)]
    *replies, memory = home.execute_all([*commands, ASK], is_forbidden)  # only ASK may be
    _, last, clock = home.checked(commands, replies)
    other_policies = [node.execute_all([ASK], is_forbidden)[0] for node in server.nodes() if node is not home]
    _require_memory(server.address, find_worst_policy([memory, *other_policies]))
    number = max(milliseconds(clock) * 1000, ledger.number_in(last or b"0") + 1)
    return number if transact(home, [("SET", RUNS, number)]) is not None else None


def _require_memory(address: Address, policy: str | None) -> str:
    """Return the server's eviction policy, empty if the user may not read it. Raises UnsupportedError if the server may
    evict the ledger."""
    if drops_any_key(policy):
        raise UnsupportedError(
            f"the server at {address} evicts any key when its memory is full (maxmemory-policy {policy}), also the "
            "ledger of the rows that are written. Set maxmemory-policy to noeviction (or volatile-lru), or set "
            "delivery=at-least-once"
        )
    return policy or ""


# -- the end -----------------------------------------------------------------------------------------------------------


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
    _until_true(address, _BatchCommit(batch, totals, replicas, together).close)


def void_batch(address: Address, batch: Batch) -> None:
    """Void the ledger of a micro-batch that is complete and was written without it (delivery=at-least-once).

    A query may be run with at-least-once for some batches, for example because an error of the ledger advises it. The
    next batch with exactly-once would find that the batch before it was begun and is not done, or is missing. So every
    stream of the record forgets its batches, without a comparison, and the record says that the batch is closed:

        → HGETALL record                                                nothing to do: no record, or it is closed there
        → WATCH heads   HMGET head …   SMEMBERS parts …
        → MULTI   DEL head   HSET head done …   UNLINK marks …   EXEC   nil: another client changed a head; try again
        → as at the end of any batch: the record, then the heads, then the names of the streams in the record

    A stream that a later batch has reached stays as it is: another driver has gone on with the query.
    """
    _until_true(address, _BatchCommit(batch, {}).void)


def rows_written(server: Server, stream: str, query: str, number: int) -> int:
    """Return how many rows all runs of this micro-batch have written to the stream so far, for progress displays.
    Raises LedgerError, ServerError."""
    keys = ledger.Keys.for_stream(stream.encode(), Batch.of_query(MicroBatchName(query, number), ""))
    fields, names = server.execute_all([("HMGET", keys.head, *ledger.HEAD_FIELDS), ("SMEMBERS", keys.parts)])
    head = ledger.LedgerHead.read(fields)
    if head.done == number:
        return head.rows
    if head.batch != number:
        return 0
    parts = [ledger.MarkKey.read(name) for name in names]
    return ledger.rows_in(server.execute_all(head.counts(keys, parts)))


class LoadLease(Lease):
    """The lease of a load on its stream. query: the ID in its checkpoint, so other loads may fill the stream, too."""

    def __init__(self, address: Address, query: str) -> None:
        super().__init__(address, "load")
        self._query = query

    def key_of(self, stream: str) -> bytes:
        return key_beside(stream, "lease", f"load-{self._query}")

    def taken(self, stream: str, where: str) -> TakenError:
        return TakenError(
            f"another run of this load fills stream {stream!r} at {self._address}{where}. Let it end, or stop it: the "
            "next run continues"
        )


def _until_true(address: Address, attempt: Callable[[Server], bool]) -> None:
    with Session(address, is_known=True) as session:
        while not session.run(attempt):
            pass


@dataclass
class _BatchCommit:
    """The end of one batch. `close` and `void` try once, and return False if the ledger has changed meanwhile."""

    batch: Batch
    totals: Mapping[bytes, Total]  # rows of the tasks, by stream
    replicas: int | None = None  # that must have the end of the batch, too
    together: int = STREAMS_PER_TRANSACTION
    sealing: bool = False  # this commit may have removed the job's record

    def close(self, server: Server) -> bool:
        """Compare the rows of the tasks with the ledger, close the batch, and wait for replicas. Raises LedgerError,
        ReplicationError."""
        is_closed = self._close(server)
        if is_closed and self.replicas is not None:
            heads = [ledger.Keys.for_stream(stream, self.batch).head for stream in self.totals]
            wait_for_replicas(server, self.replicas, touched(server, [*heads, self.batch.record.encode()]))
        return is_closed

    def _close(self, server: Server) -> bool:
        batch, totals = self.batch, self.totals
        flat, record, kind = self._read_record(server)
        is_closed = record.closed == batch.number
        if not flat and batch.expires and self.sealing:
            self._forget_job(server)
            return True
        if record.closed > batch.number:
            raise refusals.late_closing(batch, record.closed)
        if not is_closed:
            require_nothing_lost(server, batch, record)
        forgotten: list[bytes] = []
        for streams in portions_of(server, [*{**totals, **record.streams}], self.together):
            balances = self._read_balances(server, record, kind, streams)
            commands = [command for balance in balances for command in balance.commands()]
            if not self._execute_watched(server, [] if is_closed else commands):
                return False
            forgotten += [balance.stream for balance in balances if balance.is_forgotten]
        return is_closed or self._end(server, record, forgotten)

    def void(self, server: Server) -> bool:
        """Forget all streams of the record, and say there that the batch is closed."""
        flat, record, kind = self._read_record(server)
        if not flat or record.closed >= self.batch.number:
            return True
        forgotten: list[bytes] = []
        for streams in portions_of(server, [*record.streams], self.together):
            balances = self._read_balances(server, record, kind, streams)
            commands = [command for balance in balances for command in balance.void_commands()]
            if not self._execute_watched(server, commands):
                return False
            forgotten += [balance.stream for balance in balances if balance.has_no_later_batch]
        return self._end(server, record, forgotten)

    def _read_record(self, server: Server) -> tuple[Reply, ledger.QueryRecord, SourceReport]:
        """Return (the reply of the record, empty if there is none; the record; what the source reports of the
        batch)."""
        flat, kind_reply = server.execute_all([("HGETALL", self.batch.record), self.batch.kind_command])
        return flat, ledger.QueryRecord.read(flat), self.batch.read_kind(kind_reply)

    def _execute_watched(self, server: Server, commands: Sequence[ledger.Command]) -> bool:
        """Execute commands behind WATCH; without any, watch nothing. Return False if a watched key has changed."""
        if commands:
            return transact(server, commands) is not None
        server.execute("UNWATCH")
        return True

    def _end(self, server: Server, record: ledger.QueryRecord, forgotten: Sequence[bytes]) -> bool:
        """Close the batch in the record, then delete what the ledger has of forgotten streams. record: as it was read.
        Return False if it has changed since."""
        if not self._seal(server, record, forgotten):
            return False
        if forgotten and not self.batch.expires:
            self._delete_names(server, self._delete_heads(server, forgotten))
        return True

    def _read_balances(
        self, server: Server, record: ledger.QueryRecord, kind: SourceReport, streams: Sequence[bytes]
    ) -> list[Balance]:
        """WATCH the heads of these streams, and read their ledgers."""
        keys = [ledger.Keys.for_stream(stream, self.batch) for stream in streams]
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
            received, named = self.totals.get(stream), record.streams.get(stream, ledger.NONE_CLOSED)
            balances.append(Balance(self.batch, kind, stream, received, named, record.closed, contents))
        return balances

    def _seal(self, server: Server, before: ledger.QueryRecord, forgotten: Sequence[bytes]) -> bool:
        """Write into the record that the batch is closed. before: the record when it was read."""
        record = self.batch.record
        seen = server.execute_all([("WATCH", record), ("HGETALL", record)])[-1]
        if ledger.QueryRecord.read(seen) != before:
            server.execute("UNWATCH")
            return False
        self.sealing = True
        last: list[ledger.Command] = [("UNLINK", record)]
        if not self.batch.expires:
            last = [("HSET", record, CLOSED, self.batch.number)]
            if forgotten:
                last.append(("HSET", record, *[word for stream in forgotten for word in (stream, ledger.NONE_CLOSED)]))
        if transact(server, last) is None:
            return False
        self._forget_job(server)
        return True

    def _delete_heads(self, server: Server, streams: Sequence[bytes]) -> list[bytes]:
        """Delete the heads of these streams, unless a later batch has begun there: another driver may have gone on.
        Return the streams that have no head now."""
        without_head: list[bytes] = []
        for part in portions_of(server, streams, self.together):
            keys = [ledger.Keys.for_stream(stream, self.batch).head for stream in part]
            _, *replies = server.execute_all([
                ("WATCH", *keys), *[("HMGET", key, *ledger.HEAD_FIELDS) for key in keys]
            ])  # fmt: skip
            heads = list(map(ledger.LedgerHead.read, replies))
            number = self.batch.number
            unused = [key for key, head in zip(keys, heads, strict=True) if head.batch == head.done == number]
            if not self._execute_watched(server, [("UNLINK", *unused)] if unused else []):
                continue
            without_head += [
                stream
                for stream, key, head in zip(part, keys, heads, strict=True)
                if key in unused or head == ledger.LedgerHead()
            ]
        return without_head

    def _delete_names(self, server: Server, streams: Sequence[bytes]) -> None:
        """Delete the names of these streams from the record, unless a later batch has begun there."""
        if not streams:
            return
        record = self.batch.record
        numbers = server.execute_all([("WATCH", record), ("HMGET", record, *streams)])[-1]
        unused = [s for s, number in zip(streams, numbers, strict=True) if number == b"%d" % ledger.NONE_CLOSED]
        self._execute_watched(server, [("HDEL", record, *unused)] if unused else [])

    def _forget_job(self, server: Server) -> None:
        """Delete the heads of a job that is over: they are not read again."""
        if self.batch.expires and self.totals:
            server.execute("UNLINK", *[ledger.Keys.for_stream(stream, self.batch).head for stream in self.totals])


def require_nothing_lost(server: Server, batch: Batch, record: ledger.QueryRecord) -> None:
    """Compare the record with the heads of its streams, and with the number of the batch. Raises LedgerError if the
    server has lost data."""
    before = batch.number - 1
    if record.closed < 0 and not record.streams and batch.follows_another:
        raise refusals.no_record(batch)
    in_cluster = server.address.is_cluster
    if record.closed < 0 or batch.expires or not (in_cluster or record.closed < before):
        return
    streams = list(record.streams)
    replies = server.execute_all(
        [("HMGET", ledger.Keys.for_stream(stream, batch).head, *ledger.HEAD_FIELDS) for stream in streams]
    )
    heads = dict(zip(streams, map(ledger.LedgerHead.read, replies), strict=True))
    if in_cluster:
        for stream, head in heads.items():
            _require_last_batch(batch, stream, head, record)
    if record.closed >= before or batch.is_named_write:
        return
    # The error for a batch that was begun and not done comes when its stream is compared.
    node = server.connection_for(batch.record)
    beside_record = [head for stream, head in heads.items() if server.connection_for(stream) is node]
    if not any(head.last_done >= before or head.batch == before for head in beside_record):
        raise refusals.lost_batches(batch, record.closed)


def _require_last_batch(batch: Batch, stream: bytes, head: ledger.LedgerHead, record: ledger.QueryRecord) -> None:
    """Require that the head has the batch that the record names for its stream, if that is closed."""
    number = record.streams[stream]
    if number <= record.closed and head.last_done < number and (head.batch != number or batch.is_named_write):
        shown, key = stream.decode("utf-8", "replace"), ledger.Keys.for_stream(stream, batch).head
        raise refusals.lost_done(batch, shown, number, head.last_done, key)


def touched(server: Server, hashes: Sequence[bytes]) -> Sequence[bytes]:
    """Return these keys after a write on each node that holds some, which changes none. WAIT covers only the writes of
    its own connection, and another connection or driver may have closed the batch. Raises ServerError."""
    for node, (key, *_) in server.parts(hashes, lambda key: key):
        transact(node, [("HSET", key, "touch", ""), ("HDEL", key, "touch")])
    return hashes


def wait_for_replicas(server: Server, replicas: int, keys: Sequence[bytes]) -> None:
    """Wait until this many replicas have all writes of these connections; in a cluster, the replicas of each node that
    holds one of the keys. Raises ReplicationError, ServerError."""
    for node, _ in server.parts(keys, lambda key: key):
        patience = node.address.patience
        until, have = time.monotonic() + patience.replicas, 0
        # The server sends nothing while it waits. Several short WAITs show whether it is unreachable or waiting.
        while have < replicas and (remaining := until - time.monotonic()) > 0:
            have = node.execute("WAIT", replicas, max(1, round(1000 * min(remaining, patience.reply / 2))))
        if have < replicas:
            raise ReplicationError(
                f"{have} of {replicas} replicas (waitReplicas) of {node.address} acknowledged the entries within "
                f"{patience.replicas:.3g} s. The entries are written: a retry with delivery=exactly-once does not "
                "write them again, a retry with at-least-once does. Start the missing replicas, or set waitReplicas "
                "lower"
            )
