"""Witness of the last batch, in a cluster: a key on another node than the query's record.

If a replica that lagged behind becomes the master, it may lack the rows of a batch together with their ledger, because
a stream and its ledger are on one node. That node alone cannot show the loss. So the driver writes a witness on another
node with each batch, and compares the ledger with it before the next batch:

    rstream:witness:{n}:<query>    a hash: the batch in the empty field, and the number of rows of each stream

{n} is the first number whose slot is on another master than the record. So for each stream, record or witness is on
another node. The driver writes the witness after it has compared the streams with the one before, and before it forgets
any of them. If slots have moved, another n may apply: then one batch has no witness, and the old one expires.

A single server has no other node. There, and if record and witness are lost together, Spark's commit log shows the
loss: a batch begins when the one before it is in the commit log, and each batch is closed, also without rows (S80).
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.model.keys import CLOSED, witness_key
from spark_streams.sink.ledger import refusals
from spark_streams.sink.ledger.balance import Total
from spark_streams.sink.ledger.batch import Batch
from spark_streams.sink.ledger.ledger import HEAD_FIELDS, Command, Head, Keys, Record
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.multi_exec import transact

_SECONDS = 7 * 86_400  # until a witness expires
_TRIES = 256  # slots; if all are on the record's node, there is no witness


def find_witness_key(server: Server, batch: Batch) -> str | None:
    """Return the witness' key; None if no other node has one, and for a job, which has no next batch."""
    if batch.expires or not server.address.is_cluster:
        return None
    record_node = server.connection_for(batch.record)
    keys = (witness_key(batch.query, n) for n in range(_TRIES))
    return next((key for key in keys if server.connection_for(key) is not record_node), None)


def write_witness(server: Server, place: str, batch: Batch, totals: Mapping[bytes, Total]) -> None:
    """Replace the witness of the batch before by this batch. May be run again."""
    rows = [word for stream, total in totals.items() if total.rows for word in (stream, total.rows)]
    written: Command = ("HSET", place, CLOSED, batch.number, *rows)
    transact(server, [("DEL", place), written, ("EXPIRE", place, _SECONDS)])


def require_nothing_lost(server: Server, batch: Batch, record: Record, witness: Record) -> None:
    """Compare the heads of the streams of the batch before with record and witness. Raises LedgerError if the server
    has lost data."""
    before, last_closed = batch.number - 1, max(record.closed, witness.closed)
    if last_closed < 0 and not record.streams and batch.follows_another:
        raise refusals.no_record(batch)
    is_first_look = 0 <= witness.closed < batch.number
    if last_closed < 0 or (last_closed >= before and not is_first_look):
        return
    expected: dict[bytes, tuple[int, int | None]] = {
        stream: (number, None) for stream, number in record.streams.items() if number <= record.closed
    }
    if witness.closed >= record.closed:  # a driver that stood still may have written its witness late
        expected |= {stream: (witness.closed, rows) for stream, rows in witness.streams.items()}
    streams = list({**record.streams, **expected})
    replies = server.execute_all([("HMGET", Keys.for_stream(stream, batch).head, *HEAD_FIELDS) for stream in streams])
    heads = dict(zip(streams, map(Head.read, replies), strict=True))
    if is_first_look:
        _compare_heads(batch, heads, expected)
    # The error for a batch that was begun and not done comes when its stream is compared.
    is_seen = any(head.last_done >= before or head.batch == before for head in heads.values())
    if last_closed < before and not is_seen and not batch.is_named_write:
        raise refusals.lost_batches(batch, last_closed)


def _compare_heads(batch: Batch, heads: Mapping[bytes, Head], expected: Mapping[bytes, tuple[int, int | None]]) -> None:
    for stream, (number, rows) in expected.items():
        head = heads[stream]
        if head.last_done < number and (head.batch != number or batch.is_named_write):
            shown = stream.decode("utf-8", "replace")
            raise refusals.lost_done(batch, shown, number, head.last_done, Keys.for_stream(stream, batch).head, rows)
