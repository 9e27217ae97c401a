"""How many rows of a batch are in a stream, as its ledger says: for whoever shows progress."""

from __future__ import annotations

from spark_streams.sink.batch import Batch
from spark_streams.sink.ledger import HEAD_FIELDS, Head, Keys, Part, number_in
from spark_streams.wire.server import Server


def rows_written(server: Server, stream: str, query: str, number: int) -> int:
    """Rows of this micro-batch that all its runs have written to the stream so far. Raises LedgerError, ServerError."""
    keys = Keys.of(stream.encode(), Batch.of_query(query, number, ""))
    fields, names = server.execute_all([("HMGET", keys.head, *HEAD_FIELDS), ("SMEMBERS", keys.parts)])
    head = Head.read(fields)
    if head.done == number:
        return head.rows
    parts = [Part.read(name) for name in names]
    counts = [keys.named(part.name) for part in parts if part.batch == number and part.what == "written"]
    return sum(number_in(count or b"0") for count in server.execute_all([("GET", key) for key in counts]))
