"""A witness of the last batch, in a cluster: on another node than the query's record.

A replica that lagged behind and became the master may have lost the rows of a batch together with all that says so:
the stream, and what stands beside it, are on one node. Then nothing there is amiss. So the driver leaves word
elsewhere, with each batch, and the next batch is held against it:

    rstream:witness:{n}:<query>    a hash: the batch under the empty name, and how many rows each stream got

{n} is the first number whose slot another master has than the record's: of record and witness at least one is on
another node than any given stream. It is written when the streams were held against the one before, and before
anything of that is forgotten. Where slots have moved, another n may count: then there is none for one batch, and the
old one expires.

One server has no other node. There, and where record and witness are lost together, it is Spark that knows: a batch
begins when the one before it is in the commit log, and each one is closed, also where it has no rows (S80).
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
_TRIES = 256  # slots, before all count as one node's


def place_of(server: Server, batch: Batch) -> str | None:
    """The witness' key; None where it would stand on the record's node, and for a job, which no batch follows."""
    if batch.expires or not server.address.is_cluster:
        return None
    there = server.of(batch.record)
    keys = (witness_key(batch.query, n) for n in range(_TRIES))
    return next((key for key in keys if server.of(key) is not there), None)


def leave_word(server: Server, place: str, batch: Batch, totals: Mapping[bytes, Total]) -> None:
    """This batch, in place of the one before. Doing it again is harmless."""
    rows = [word for stream, total in totals.items() if total.rows for word in (stream, total.rows)]
    written: Command = ("HSET", place, CLOSED, batch.number, *rows)
    transact(server, [("DEL", place), written, ("EXPIRE", place, _SECONDS)])


def require_all_there(server: Server, batch: Batch, record: Record, witness: Record) -> None:
    """Hold what stands beside the streams of the batch before against what record and witness say of them. Raises
    LedgerError if the server has lost some of it."""
    before, known = batch.number - 1, max(record.closed, witness.closed)
    if known < 0 and not record.streams and batch.follows_another:
        raise refusals.no_record(batch)
    is_first_look = 0 <= witness.closed < batch.number
    if known < 0 or (known >= before and not is_first_look):
        return
    expected: dict[bytes, tuple[int, int | None]] = {
        stream: (number, None) for stream, number in record.streams.items() if number <= record.closed
    }
    if witness.closed >= record.closed:  # a driver that stood still may have left word late
        expected |= {stream: (witness.closed, rows) for stream, rows in witness.streams.items()}
    streams = list({**record.streams, **expected})
    replies = server.execute_all([("HMGET", Keys.of(stream, batch).head, *HEAD_FIELDS) for stream in streams])
    heads = dict(zip(streams, map(Head.read, replies), strict=True))
    if is_first_look:
        _hold(batch, heads, expected)
    # A batch that was begun and not done is named when its stream is looked at.
    is_seen = any(head.last_done >= before or head.batch == before for head in heads.values())
    if known < before and not is_seen and not batch.is_named_write:
        raise refusals.lost_batches(batch, known)


def _hold(batch: Batch, heads: Mapping[bytes, Head], expected: Mapping[bytes, tuple[int, int | None]]) -> None:
    for stream, (number, rows) in expected.items():
        head = heads[stream]
        if head.last_done < number and (head.batch != number or batch.is_named_write):
            shown = stream.decode("utf-8", "replace")
            raise refusals.lost_done(batch, shown, number, head.last_done, Keys.of(stream, batch).head, rows)
