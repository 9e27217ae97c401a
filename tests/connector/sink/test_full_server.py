"""The server's memory is full when a sink starts, or in the midst of its rows: it waits, then ends with one error that
says how full it is. With memory, the next run writes the rest, each row once."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from spark_streams.connector.errors import RetriesExhaustedError
from spark_streams.connector.keys import MicroBatchName
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.sink.writers import BatchWriter
from spark_streams.connector.wire.address import Patience
from tests.connector.sink.writing import close, frame, numbers, options, write
from tests.full_server import full
from tools.patience import with_patience
from tools.servers.server import Server

ROWS = list(range(100))
HASTY = Patience(limit=0.3, longest_pause=0.05)
SAID = r"without success, at last: .*: the server's memory is full \([0-9.,]+ [KM]B used of maxmemory 488 KB\)"


def hasty(server: Server, **more: str) -> SinkOptions:
    return with_patience(options(server.url, **more), HASTY)


def begun(checked: SinkOptions) -> Batch:
    return BatchWriter(checked, StructType().add("n", LongType()), False).batch_of(MicroBatchName("q", 0))


def test_a_run_that_cannot_begin_its_ledger_says_why(server: Server) -> None:
    checked = hasty(server, transaction="name")
    with full(server), pytest.raises(RetriesExhaustedError, match=SAID):
        begun(checked)
    batch = begun(checked)
    close(checked, batch, write([frame(ROWS)], checked, batch))
    assert numbers(server) == Counter(ROWS)


@pytest.mark.parametrize("is_exactly_once", [True, False])
def test_rows_that_are_refused_in_the_midst_of_a_task(server: Server, is_exactly_once: bool) -> None:
    """The task says how full the memory is. The next attempt writes the rest; at least once: all."""
    checked = hasty(server, chunkSize="10", **({"transaction": "name"} if is_exactly_once else {}))
    batch = begun(checked) if is_exactly_once else None
    with contextlib.ExitStack() as until_then:

        def then_full() -> Iterator[pa.RecordBatch]:
            yield frame(ROWS[:50])
            until_then.enter_context(full(server))
            yield frame(ROWS[50:])

        with pytest.raises(RetriesExhaustedError, match=SAID):
            append(then_full(), checked, batch and SinkTask(batch))
    written = numbers(server)
    assert 0 < written.total() < 100
    result = append([frame(ROWS)], checked, batch and SinkTask(batch))
    if batch is not None:
        close(checked, batch, result)
    assert numbers(server) == Counter(ROWS) + (Counter() if is_exactly_once else written)
