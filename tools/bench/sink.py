"""P9 … P12, P28, P29: the sink, compared with redis-benchmark, redis-py, and itself with other options."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import redis
from pyspark.sql import DataFrame
from pyspark.sql import Row as SparkRow
from redis.connection import Connection as PackingConnection

from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_run
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.sink.fields import text_columns
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.xadd_bytes import encode_xadd
from tools.bench.engine import benchmark
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.spark import session, source, steady_rate
from tools.servers.cluster import running_cluster

ROWS = 2_000_000
_PEER_ROWS = 200_000
_BATCH = 10_000  # rows of an Arrow batch, as Spark cuts them
_PIPELINE = 5_000
KEEP = 100_000
_PASSES = 5


@functools.cache
def frame(rows: int) -> DataFrame:
    """Return two columns of twelve digits in two partitions, cached in memory."""
    digits = "lpad(cast({} % 100000000 AS STRING), 12, '0')"
    rows_of_digits = session().range(0, rows, 1, 2).selectExpr(
        f"{digits.format('id * 7919')} AS f", f"{digits.format('id * 104729')} AS g"
    )  # fmt: skip
    rows_of_digits = rows_of_digits.cache()
    rows_of_digits.count()
    return rows_of_digits


def write_rate(url: str, rows: DataFrame, count: int, stream: str, names: Sequence[str], **options: str) -> float:
    """Return rows per second of `df.write` to a stream, or to its shards `names`, with all of Spark's work."""
    begun = time.perf_counter()
    rows.write.format("rstream").mode("append").options(url=url, stream=stream, **options).save()
    rate = count / (time.perf_counter() - begun)
    _check(url, count, *names)
    return rate


def _check(url: str, rows: int, *names: str) -> None:
    with connect(Address.parse(url)) as server:
        replies = [server.execute("XINFO", "STREAM", name) for name in names]
    added = [dict(zip(reply[0::2], reply[1::2], strict=True))[b"entries-added"] for reply in replies]
    assert sum(added) == rows, "not all rows were written"


def spark_rate(server: Running, **options: str) -> float:
    """Return rows per second of `df.write` to a new stream."""
    rows = frame(ROWS)
    server.call("FLUSHALL")
    return write_rate(server.url, rows, ROWS, "s", ["s"], maxlen=str(KEEP), **options)


def redis_py_rate(server: Running) -> float:
    """Return rows per second of redis-py's pipelines in foreachPartition, for a part of the same rows."""
    rows, port = frame(_PEER_ROWS), server.port
    server.call("FLUSHALL")

    def write(part: Iterable[SparkRow]) -> None:
        client = redis.Redis(port=port)
        pipeline = client.pipeline(transaction=False)
        for row in part:
            pipeline.xadd("s", {"f": row.f, "g": row.g}, maxlen=KEEP, approximate=True)
            if len(pipeline) == _PIPELINE:
                pipeline.execute()
        pipeline.execute()
        client.close()

    begun = time.perf_counter()
    rows.foreachPartition(write)
    rate = _PEER_ROWS / (time.perf_counter() - begun)
    _check(server.url, _PEER_ROWS, "s")
    return rate


@functools.cache
def _batches() -> list[pa.RecordBatch]:
    random.seed(1)
    names = ("f", "g")
    return [
        pa.RecordBatch.from_pydict({n: [f"{random.randrange(10**8):012d}" for _ in range(_BATCH)] for n in names})
        for _ in range(40)
    ]


def task_rate(server: Running, exactly_once: bool) -> float:
    """Return rows per second of a single task, without Spark."""
    batches = _batches()
    server.call("FLUSHALL")
    sink_options = SinkOptions.parse({"url": server.url, "stream": "s", "maxlen": str(KEEP)})
    begun = time.perf_counter()
    task = SinkTask(Batch("bench", 0, begin_run(sink_options.address), expires=False)) if exactly_once else None
    written = append(batches, sink_options, task)
    rate = written.rows / (time.perf_counter() - begun)
    _check(server.url, written.rows, "s")
    return rate


@functools.cache
def mixed_batch() -> pa.RecordBatch:
    """Return ten columns of ten types with some nulls."""
    random.seed(2)
    numbers = range(_BATCH)
    start = datetime(2013, 1, 1, tzinfo=UTC)
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array([random.randrange(10**9) for _ in numbers], pa.int64()),
            "count": pa.array([random.randrange(1000) for _ in numbers], pa.int32()),
            "price": pa.array([random.random() * 1000 for _ in numbers], pa.float64()),
            "ratio": pa.array([random.random() for _ in numbers], pa.float32()),
            "paid": pa.array([random.random() < 0.5 for _ in numbers], pa.bool_()),
            "day": pa.array([date(2013, 1, 1) + timedelta(random.randrange(4000)) for _ in numbers], pa.date32()),
            "at": pa.array([start + timedelta(microseconds=random.randrange(10**15)) for _ in numbers],
                           pa.timestamp("us", tz="UTC")),
            "amount": pa.array([Decimal(random.randrange(10**7)).scaleb(-2) for _ in numbers], pa.decimal128(10, 2)),
            "name": pa.array([None if n % 10 == 0 else f"customer {n % 97}" for n in numbers], pa.string()),
            "tags": pa.array([[f"t{n % 7}", f"u{n % 11}"] for n in numbers], pa.list_(pa.string())),
        }
    )  # fmt: skip


def encode_rate() -> float:
    """Return rows per second from a batch to the bytes of XADD commands."""
    batch = mixed_batch()

    def encode() -> None:
        fields = text_columns(batch, "omit")
        encode_xadd(b"orders", fields.names, fields.values, fields.first)

    return _best(encode, _PASSES)


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return json.dumps(value) if isinstance(value, list) else value


def redis_py_encode_rate() -> float:
    """Return the same for `to_pylist` and redis-py's packing."""
    batch, packing = mixed_batch(), PackingConnection()  # type: ignore[no-untyped-call]

    def encode() -> None:
        commands = []
        for row in batch.to_pylist():
            command = ["XADD", "orders", "*"]
            for name, value in row.items():
                if value is not None:
                    command += (name, _text(value))
            commands.append(command)
        packing.pack_commands(commands)  # type: ignore[no-untyped-call]

    return _best(encode, 1)


def _best(encode: Callable[[], None], passes: int) -> float:
    seconds = []
    for _ in range(passes):
        begun = time.perf_counter()
        encode()
        seconds.append(time.perf_counter() - begun)
    return _BATCH / min(seconds)


def sink_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The server runs while the stack is open."""
    server = stack.enter_context(running("redis-server"))
    words = ["xadd", "s", "maxlen", "~", str(KEEP), "*", "f", "__rand_int__", "g", "__rand_int__"]

    def write(delivery: str) -> Callable[[], float]:
        return lambda: spark_rate(server, delivery=delivery)

    spark_write = f"df.write of {ROWS:,} rows of 2 columns from memory, local[2], maxlen ~ {KEEP:,}"
    return [
        Row("P9", "at least once", f"{spark_write}; redis-benchmark -P 100 {' '.join(words)}", "/s", 0.9,
            write("at-least-once"), lambda: benchmark(server, "-P 100", 2.0, words), "redis-benchmark"),
        Row("P10", "at least once", f"{spark_write}; {_PEER_ROWS:,} rows by redis-py, pipelines of {_PIPELINE:,} in "
            "foreachPartition", "/s", None, write("at-least-once"), lambda: redis_py_rate(server), "redis-py"),
        Row("P11", "exactly once", f"{spark_write}; the same at least once", "/s", 0.9, write("exactly-once"),
            write("at-least-once"), "at least once"),
        Row("P11", "exactly once, one task", "400,000 rows, one task without Spark; the same at least once", "/s", 0.9,
            lambda: task_rate(server, True), lambda: task_rate(server, False), "at least once"),
        Row("P12", "encode alone, 10 mixed columns", f"{_BATCH:,} rows; to_pylist and redis-py's pack_commands", "/s",
            10.0, encode_rate, redis_py_encode_rate, "redis-py"),
    ]  # fmt: skip


# -- shards: P28, P29 --------------------------------------------------------------------------------------------------


_SHARDS = 8
_SHARDED = {"shards": str(_SHARDS), "shardBy": "f"}
_ORDERED_BATCH, _ORDERED = 250_000, 1_000_000
_groups = count()


def write(url: str, rows: DataFrame, count: int, stream: str, **options: str) -> float:
    """Return rows per second of `df.write` to a new stream, exactly once, with all of Spark's work."""
    names = shards_of(stream, _SHARDS) if "shards" in options else (stream,)
    with connect(Address.parse(url)) as server:
        for key in (*names, f"rstream:shards:{{{stream}}}"):
            server.execute("DEL", key)
    return write_rate(url, rows, count, stream, names, **options)


def drain(url: str, stream: str) -> float:
    """Return entries per second of Spark, one task for each stream, from the second batch to the end."""
    options = {"group": f"g{next(_groups)}", "ordered": "true", "maxEntriesPerTrigger": _ORDERED_BATCH}
    return steady_rate(source(url, "f STRING, g STRING", streams=stream, **options), _ORDERED_BATCH + _ORDERED)


def shards_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The servers run while the stack is open."""

    @functools.cache
    def url(place: str) -> str:
        """Start the server, or the masters, and write once."""
        if place == "one server":
            url = stack.enter_context(running("redis-server")).url
        else:  # without a failover during a measurement
            url = stack.enter_context(running_cluster("--cluster-node-timeout", "15000")).url
        write(url, frame(ROWS), ROWS, "one", maxlen=str(KEEP))
        return url

    @functools.cache
    def loaded(place: str) -> str:
        """Write the streams that are read, and read them once, for the JVM."""
        count = _ORDERED_BATCH + _ORDERED
        rows = frame(ROWS).limit(count).cache()
        write(url(place), rows, count, "in")
        write(url(place), rows, count, "in-shards", **_SHARDED)
        for stream in ("in", "in-shards"):
            drain(url(place), stream)
        return url(place)

    def sink(place: str, stream: str, **options: str) -> Callable[[], float]:
        return lambda: write(url(place), frame(ROWS), ROWS, stream, maxlen=str(KEEP), **options)

    def read(place: str, stream: str) -> Callable[[], float]:
        return lambda: drain(loaded(place), stream)

    written = (f"df.write of {ROWS:,} rows of 2 columns, as many keys, local[2], exactly once, maxlen ~ {KEEP:,}; "
               "the same to one stream")  # fmt: skip
    ran = (f"ordered, local[2], noop, {_ORDERED:,} entries in batches of {_ORDERED_BATCH:,}, after a first batch; the "
           "same of one stream")  # fmt: skip
    return [
        row
        for place in ("one server", "three masters")
        for row in (
            Row("P28", f"eight shards, written, {place}", written, "/s", 0.8, sink(place, "s", **_SHARDED),
                sink(place, "one"), "one stream"),
            Row("P29", f"eight shards, read in order, {place}", ran, "/s", 1.0, read(place, "in-shards"),
                read(place, "in"), "one stream"),
        )
    ]  # fmt: skip
