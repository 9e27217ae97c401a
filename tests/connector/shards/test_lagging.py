"""A replica that lagged becomes the master in the midst of a task: what it lacks is written before what follows it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_streams.connector.errors import LedgerError
from tests.connector.shards.making import by_key, frame, sequence, sharded, shards_there
from tests.connector.sink.writing import batch_of, close, write
from tests.lagging import OneServer, one_server
from tools.servers.server import Server, skip_without_redis

ROWS = sequence(300, keys=30)
IN_ORDER = {f"k{key}": list(range(key, 300, 30)) for key in range(30)}


def lost_on_the_way(lagging: OneServer) -> Iterator[pa.RecordBatch]:
    """The rows; of the third part the replica hears nothing, and with the fifth it is the master."""
    for part in range(10):
        if part == 2:
            lagging.cut_off("orders")
        if part == 4:
            lagging.promote()
        yield frame(ROWS[30 * part : 30 * part + 30])


def test_rows_of_a_key_stay_in_order_without_replicas_that_are_waited_for() -> None:
    """The attempt ends with an error before it writes what follows; the next one goes on behind what is there."""
    skip_without_redis()
    with one_server() as lagging:
        checked, batch = sharded(lagging.server.url, chunkSize="8"), batch_of(0)
        with pytest.raises(LedgerError, match="are not on the server any more"):
            write(lost_on_the_way(lagging), checked, batch)
        there = by_key(shards_there(Server("redis", lagging.server.url)))
        assert there == {key: numbers[: len(there.get(key, []))] for key, numbers in IN_ORDER.items()}
        close(checked, batch, write([frame(ROWS)], checked, batch))
        assert by_key(shards_there(Server("redis", lagging.server.url))) == IN_ORDER
