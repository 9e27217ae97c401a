"""How many rows of a batch are in a stream, as its ledger says: for whoever shows progress."""

from __future__ import annotations

from spark_streams.sink.batch import Batch
from spark_streams.sink.ledger import HEAD_FIELDS, Head, Keys, Part, rows_in
from spark_streams.wire.server import Server


def rows_written(server: Server, stream: str, query: str, number: int) -> int:
    """Rows of this micro-batch that all its runs have written to the stream so far. Raises LedgerError, ServerError."""
    keys = Keys.of(stream.encode(), Batch.of_query(query, number, ""))
    fields, names = server.execute_all([("HMGET", keys.head, *HEAD_FIELDS), ("SMEMBERS", keys.parts)])
    head = Head.read(fields)
    if head.done == number:
        return head.rows
    if head.batch != number:
        return 0
    parts = [Part.read(name) for name in names]
    return rows_in(server.execute_all(head.counts(keys, parts)))
