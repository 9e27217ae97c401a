"""A query's reader driven as Spark drives it, without Spark."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.model.micro_batch import MicroBatchName
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.microbatch import reserve
from spark_streams.source.rows.columns import Columns
from spark_streams.source.stream_reader import UNLIMITED, StreamReader
from spark_streams.spark.read_limits import ReadMaxRows
from spark_streams.spark.task_context import micro_batch
from spark_streams.wire.address.patience import DEFAULT_PATIENCE, Patience
from tools.servers.server import Server

ALL = ReadMaxRows(UNLIMITED)
SCHEMA = pa.schema([("n", pa.int64()), ("_stream", pa.string()), ("_id", pa.string())])
# Small steps and pages, so that a few hundred entries cross every boundary; however little is left, it is reserved
# ahead of its batch. Each trigger asks the server, also after one that found nothing.
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
NEVER_AHEAD = replace(SMALL, prefetch_entries=1 << 62)  # a batch is reserved when it is made
LOOK_EACH_TIME = replace(SMALL, pattern_interval=0.0)  # streams that match a pattern are looked for at every trigger
_running: list[StreamReader] = []


def reader(
    server: Server,
    schema: pa.Schema = SCHEMA,
    now: Callable[[], float] = time.monotonic,
    limits: Limits = SMALL,
    batch: Callable[[], MicroBatchName | None] = micro_batch,
    patience: Patience = DEFAULT_PATIENCE,
    first_at_once: bool = False,
    **options: str,
) -> StreamReader:
    """A query's reader. Those before it have died: their leases are free, and what they reserved is still pending."""
    stop_all()
    return another_reader(server, schema, now, limits, batch, patience, first_at_once, **options)


def another_reader(
    server: Server,
    schema: pa.Schema = SCHEMA,
    now: Callable[[], float] = time.monotonic,
    limits: Limits = SMALL,
    batch: Callable[[], MicroBatchName | None] = micro_batch,
    patience: Patience = DEFAULT_PATIENCE,
    first_at_once: bool = False,
    **options: str,
) -> StreamReader:
    """One more reader beside those that run. now: seconds that only go up; batch: the one that its tasks are in."""
    given = {"url": server.url, "streams": "s", "group": "g", "startingOffsets": "earliest", **options}
    if "streamsPattern" in options:
        del given["streams"]
    if "startingTimestamp" in options:
        del given["startingOffsets"]
    checked = SourceOptions.parse(given).with_patience(patience)
    columns = Columns(schema, True, checked.mode, checked.column_name_of_corrupt_record)
    _running.append(StreamReader(checked, columns, now, limits, batch, first_at_once))
    return _running[-1]


def begin(one: StreamReader) -> dict[str, Any]:
    """Where a query begins, once its first trigger has made its groups. It has read nothing."""
    start = one.initialOffset()
    assert one.latestOffset(start, ReadMaxRows(0)) == start
    return start


def stop_all() -> None:
    """End all readers."""
    for one in _running:
        one.stop()


def forget_all() -> None:
    """End all readers, for good."""
    stop_all()
    _running.clear()


def add(client: redis.Redis, count: int, stream: str = "s", first: int = 0) -> list[str]:
    """Entries n = first, first+1, …; their ids."""
    pipe = client.pipeline(transaction=False)
    for n in range(first, first + count):
        pipe.xadd(stream, {"n": n})
    return [str(i) for i in pipe.execute()]


def rows(one: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a batch as tasks see them: each task with a reader of its own, out of the pickle."""
    found: list[dict[str, Any]] = []
    for partition in one.partitions(start, end):
        task, share = pickle.loads(pickle.dumps((one, partition)))
        found += [row for batch in task.read(share) for row in batch.to_pylist()]
    return found


def read(one: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The same, only column n."""
    return [row["n"] for row in rows(one, start, end)]


def drain(one: StreamReader, most: int | None = None, at: dict[str, Any] | None = None) -> list[list[int]]:
    """Batch after batch until there is nothing, from `at` or the start; column n of each. As in Spark, a batch is
    committed once the one after it is made (S3)."""
    limit = ALL if most is None else ReadMaxRows(most)
    at = one.initialOffset() if at is None else at
    found: list[list[int]] = []
    while (end := one.latestOffset(at, limit)) != at:
        if found:
            one.commit(at)
        found.append(read(one, at, end))
        at = end
    return found


@contextlib.contextmanager
def others_read_first(monkeypatch: pytest.MonkeyPatch, client: redis.Redis, count: int) -> Iterator[None]:
    """Between the query's look at the group and its reserving, another consumer reads."""
    honest = reserve.reserve

    def race(*arguments: Any) -> Any:
        client.xreadgroup("g", "bob", {"s": ">"}, count=count)
        return honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(reserve, "reserve", race)
        yield


def pending_count(client: redis.Redis, stream: str = "s", group: str = "g") -> int:
    """Entries pending in the group, for whomever."""
    return int(client.xpending(stream, group)["pending"])
