"""How many rows of a batch are in the stream: while it is written, after its run was killed, when it is done."""

from __future__ import annotations

from spark_streams.connector.sink.ledger.batch_commit import rows_written
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.connection import Connection
from tests.connector.sink.writing import batch_of, close, frame, killed_before_chunk, options, write
from tools.servers.server import Server

ROWS = [frame(range(100))]


def test_rows_of_all_runs_count_and_those_of_other_batches_do_not(server: Server) -> None:
    checked = options(server.url, chunkSize="10")
    with Connection(Address.parse(server.url)) as connection:

        def rows(number: int) -> int:
            return rows_written(connection, "out", "q", number)

        assert rows(0) == 0
        killed_before_chunk(4, ROWS, checked, batch_of(0))
        assert rows(0) == 30
        killed_before_chunk(3, ROWS, checked, batch_of(0))
        assert rows(0) == 50
        batch = batch_of(0)
        result = write(ROWS, checked, batch)
        assert rows(0) == 100
        close(checked, batch, result)
        assert (rows(0), rows(1)) == (100, 0)
        killed_before_chunk(2, ROWS, checked, batch_of(1))
        assert (rows(0), rows(1)) == (100, 10)
