"""Drive a query's reader as Spark does, without Spark."""

from __future__ import annotations

import contextlib
import functools
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.keys import MicroBatchName
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import position_in
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.stream_reader import UNLIMITED, StreamReader
from spark_streams.connector.source.trigger import roles
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.spark.worker import micro_batch
from spark_streams.connector.wire.address import DEFAULT_PATIENCE, Patience
from tools.patience import with_patience
from tools.servers.server import Server

ALL = ReadMaxRows(UNLIMITED)
SCHEMA = pa.schema([("n", pa.int64()), ("_stream", pa.string()), ("_id", pa.string())])
# Small steps and pages, so that a few hundred entries cross every boundary. Even a single entry is reserved ahead of
# its batch. Each trigger asks the server, also after a trigger without entries.
SMALL = replace(
    LIMITS,
    first_page=7,
    pending_page=70,
    reserve_step=30,
    reserve_round=100,
    prefetch_entries=1,
    idle_check=0,
    sampled_entries=3,
)
NEVER_AHEAD = replace(SMALL, prefetch_entries=1 << 62)  # a batch is reserved when it is planned
LOOK_EACH_TIME = replace(SMALL, pattern_interval=0.0)  # every trigger searches for streams of the pattern
_running: list[StreamReader] = []


def reader(
    server: Server,
    schema: pa.Schema = SCHEMA,
    now: Callable[[], float] = time.monotonic,
    limits: Limits = SMALL,
    batch: Callable[[], MicroBatchName | None] = micro_batch,
    patience: Patience = DEFAULT_PATIENCE,
    first_at_once: bool = False,
    beside: bool = False,
    **options: str,
) -> StreamReader:
    """Return a query's reader. Earlier readers have died: their leases are free, their reservations are pending.

    now: monotonic seconds; batch: the batch of its tasks; beside: it runs in addition to the earlier readers.
    """
    if not beside:
        stop_all()
    settings = {"url": server.url, "streams": "s", "group": "g", "startingOffsets": "earliest", **options}
    if "streamsPattern" in options:
        del settings["streams"]
    if "startingTimestamp" in options:
        del settings["startingOffsets"]
    source_options = with_patience(SourceOptions.parse(settings), patience)
    columns = Columns(schema, True, source_options.mode, source_options.column_name_of_corrupt_record)
    _running.append(StreamReader(source_options, columns, now, limits, batch, first_at_once))
    return _running[-1]


another_reader = functools.partial(reader, beside=True)


def positions(offset: Any) -> dict[str, str]:
    """Return the position in each stream of an offset."""
    return {stream: position_in(text) for stream, text in offset["streams"].items()}


def begin(query: StreamReader) -> dict[str, Any]:
    """Return the start offset of a query, after a first trigger that created its groups and read no entry."""
    start = query.initialOffset()
    assert query.latestOffset(start, ReadMaxRows(0)) == start
    return start


def stop_all() -> None:
    """Stop all readers."""
    for running in _running:
        running.stop()


def forget_all() -> None:
    """Stop all readers, and forget them."""
    stop_all()
    _running.clear()


def add(client: redis.Redis, count: int, stream: str = "s", first: int = 0) -> list[str]:
    """Add entries n = first, first+1, …. Return their IDs."""
    pipe = client.pipeline(transaction=False)
    for n in range(first, first + count):
        pipe.xadd(stream, {"n": n})
    return [str(i) for i in pipe.execute()]


def rows(query: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a batch as its tasks read them. Each task has its own unpickled reader."""
    rows_of_batch: list[dict[str, Any]] = []
    for partition in query.partitions(start, end):
        task, share = pickle.loads(pickle.dumps((query, partition)))
        rows_of_batch += [row for batch in task.read(share) for row in batch.to_pylist()]
    return rows_of_batch


def read(query: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return column n of the rows of a batch."""
    return [row["n"] for row in rows(query, start, end)]


def drain(query: StreamReader, limit: int | None = None, start: dict[str, Any] | None = None) -> list[list[int]]:
    """Read batches until there are no entries. Return column n of each.

    limit: entries of a batch; start: offset. As in Spark, a batch is committed when the next one is planned (S3).
    """
    read_limit = ALL if limit is None else ReadMaxRows(limit)
    offset = query.initialOffset() if start is None else start
    batches: list[list[int]] = []
    while (end := query.latestOffset(offset, read_limit)) != offset:
        if batches:
            query.commit(offset)
        batches.append(read(query, offset, end))
        offset = end
    return batches


@contextlib.contextmanager
def others_read_first(monkeypatch: pytest.MonkeyPatch, client: redis.Redis, count: int) -> Iterator[None]:
    """Let another consumer read after the query has read the state of the group, and before it reserves entries."""
    original = roles.reserve

    def race(*arguments: Any) -> Any:
        client.xreadgroup("g", "bob", {"s": ">"}, count=count)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(roles, "reserve", race)
        yield


def pending_count(client: redis.Redis, stream: str = "s", group: str = "g") -> int:
    """Return the number of pending entries of all consumers of the group."""
    return int(client.xpending(stream, group)["pending"])
