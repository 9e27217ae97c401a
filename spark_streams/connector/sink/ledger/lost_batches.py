"""Whether the server has lost the batch before the one that is closed.

If a replica that lagged behind becomes the master, it may lack the rows of a batch together with their ledger, because
a stream and its ledger are on one node. Two things show that:

- In a cluster, the query's record may be on another node than a stream: it names the last batch of the stream.
- Otherwise Spark's commit log does. A batch begins when the one before it is in the commit log, and each batch is
  closed, also without rows (S80). So the record's node has a trace of it: in the record, or in the head of a stream.
"""

from __future__ import annotations

from spark_streams.connector.sink.ledger import refusals
from spark_streams.connector.sink.ledger.batch import Batch
from spark_streams.connector.sink.ledger.ledger import HEAD_FIELDS, Keys, LedgerHead, QueryRecord
from spark_streams.connector.wire.connection.server import Server


def require_nothing_lost(server: Server, batch: Batch, record: QueryRecord) -> None:
    """Compare the record with the heads of its streams, and with the number of the batch. Raises LedgerError if the
    server has lost data."""
    before = batch.number - 1
    if record.closed < 0 and not record.streams and batch.follows_another:
        raise refusals.no_record(batch)
    in_cluster = server.address.is_cluster
    if record.closed < 0 or batch.expires or not (in_cluster or record.closed < before):
        return
    streams = list(record.streams)
    replies = server.execute_all([("HMGET", Keys.for_stream(stream, batch).head, *HEAD_FIELDS) for stream in streams])
    heads = dict(zip(streams, map(LedgerHead.read, replies), strict=True))
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


def _require_last_batch(batch: Batch, stream: bytes, head: LedgerHead, record: QueryRecord) -> None:
    """Require that the head has the batch that the record names for its stream, if that is closed."""
    number = record.streams[stream]
    if number <= record.closed and head.last_done < number and (head.batch != number or batch.is_named_write):
        shown, key = stream.decode("utf-8", "replace"), Keys.for_stream(stream, batch).head
        raise refusals.lost_done(batch, shown, number, head.last_done, key)
