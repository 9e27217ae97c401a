"""Writing a batch as Spark would: partitions, attempts that fail, runs that are killed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pytest

from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.balance import Total
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import STREAMS_PER_TRANSACTION, close_batch, run_name
from spark_streams.connector.sink.chunk_writer import SinkTask, TaskResult, append
from spark_streams.connector.wire.address import Patience
from spark_streams.connector.wire.connection import Connection, pack
from tools.patience import with_patience
from tools.sending import KilledError, before_sending
from tools.servers.server import Server

HASTY = Patience(first_pause=0.001)


def options(url: str, patience: Patience = HASTY, **given: str) -> SinkOptions:
    return with_patience(SinkOptions.parse({"url": url, "stream": "out", **given}), patience)


_RUNS = itertools.count(1)


def batch_of(number: int, query: str = "q", query_run: str = "") -> Batch:
    """A new run of a query's batch, later than all before. query_run: Spark's id of the query's run."""
    return Batch(query, number, run_name(next(_RUNS)), expires=False, query_run=query_run)


def came_before(server: Server, number: int, query: str = "q") -> None:
    """What is left of the batches before this one, if none of them had rows: the server knows the query."""
    with server.client() as client:
        client.hset(f"rstream:sink:{query}", "", number - 1)


def frame(numbers: Sequence[int], streams: Sequence[str] | None = None) -> pa.RecordBatch:
    """Rows of one number and some text; streams: column `to`, for option streamColumn."""
    columns = {"n": pa.array(numbers, pa.int64()), "text": pa.array([f"row {n}" for n in numbers])}
    if streams is not None:
        columns["to"] = pa.array(streams)
    return pa.RecordBatch.from_pydict(columns)


def dying(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """These batches, then the end of the process."""
    yield from batches
    raise KilledError


def killed_before_chunk(number: int, batches: Iterable[pa.RecordBatch], checked: SinkOptions, batch: Batch) -> None:
    """An attempt of a task whose process ends when all chunks before this one are written, the first one is 1."""
    left = number

    def act(server: Connection, request: bytes) -> None:
        nonlocal left
        left -= request.startswith(pack("EXEC"))
        if not left:
            raise KilledError

    with before_sending(b"EXEC", act=act), pytest.raises(KilledError):
        write(batches, checked, batch)


def write(batches: Iterable[pa.RecordBatch], checked: SinkOptions, batch: Batch, partition: int = 0) -> TaskResult:
    """One attempt of a task."""
    return append(batches, checked, SinkTask(batch, partition))


def close(checked: SinkOptions, batch: Batch, *results: TaskResult, together: int = STREAMS_PER_TRANSACTION) -> None:
    """What the driver does when all tasks have ended."""
    totals: dict[bytes, Total] = {}
    for result in results:
        for stream, total in result.totals.items():
            totals[stream] = totals.get(stream, Total()) + total
    close_batch(checked.address, batch, totals, checked.wait_replicas, together)


def numbers(server: Server, stream: str = "out") -> Counter[int]:
    """What is in the stream."""
    with server.client() as client:
        return Counter(int(fields[b"n"]) for _, fields in client.xrange(stream))


def ledger_keys(server: Server) -> set[str]:
    """Keys of the ledger."""
    with server.client(decode_responses=True) as client:
        return set(client.keys("rstream:*"))
