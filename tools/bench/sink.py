"""P9 … P12: the sink, compared with redis-benchmark, with redis-py, and with other options of itself."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import time
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import redis
from pyspark.sql import DataFrame
from pyspark.sql import Row as SparkRow
from redis.connection import Connection as PackingConnection

from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.sink.batch import Batch
from spark_streams.connector.sink.batch_commit import begin_run
from spark_streams.connector.sink.chunk_writer import SinkTask, append
from spark_streams.connector.sink.fields import text_columns
from spark_streams.connector.wire.xadd_bytes import encode_xadd
from tools.bench.engine import benchmark
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.source import add_to
from tools.bench.spark import running as running_query
from tools.bench.spark import session, stream, trigger_time_of

ROWS = 2_000_000
_PEER_ROWS = 200_000
_BATCH = 10_000  # rows of an Arrow batch, as Spark cuts them
_PIPELINE = 5_000
_KEEP = 100_000
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


def spark_rate(server: Running, **options: str) -> float:
    """Return rows per second of `df.write`, with all of Spark's work."""
    rows = frame(ROWS)
    _empty(server)
    settings = {"url": f"redis://127.0.0.1:{server.port}/0", "stream": "s", "maxlen": str(_KEEP), **options}
    begun = time.perf_counter()
    rows.write.format("rstream").mode("append").options(**settings).save()
    rate = ROWS / (time.perf_counter() - begun)
    _check(server, ROWS)
    return rate


def redis_py_rate(server: Running) -> float:
    """Return rows per second of redis-py's pipelines in foreachPartition, for a part of the same rows."""
    rows, port = frame(_PEER_ROWS), server.port
    _empty(server)

    def write(part: Iterable[SparkRow]) -> None:
        client = redis.Redis(port=port)
        pipeline = client.pipeline(transaction=False)
        for row in part:
            pipeline.xadd("s", {"f": row.f, "g": row.g}, maxlen=_KEEP, approximate=True)
            if len(pipeline) == _PIPELINE:
                pipeline.execute()
        pipeline.execute()
        client.close()

    begun = time.perf_counter()
    rows.foreachPartition(write)
    rate = _PEER_ROWS / (time.perf_counter() - begun)
    _check(server, _PEER_ROWS)
    return rate


def small_batch(server: Running, **options: str) -> float:
    """Return milliseconds of a trigger that reads 100 entries of one stream and writes them to another."""
    _empty(server)
    client = server.client()
    client.call("XGROUP", "CREATE", "few", "g", "0", "MKSTREAM")
    client.close()
    settings = {"url": f"redis://127.0.0.1:{server.port}/0", "stream": "s", "maxlen": str(_KEEP), **options}
    with running_query(stream(server, "few"), "rstream", settings, processingTime="1 second") as query:
        return trigger_time_of(query, 100, 7, add_to(server, ["few"], 100))


def _empty(server: Running) -> None:
    client = server.client()
    client.call("FLUSHALL")
    client.close()


def _check(server: Running, rows: int) -> None:
    client = server.client()
    assert client.call("XINFO", "STREAM", "s")[7] is not None
    info = client.call("XINFO", "STREAM", "s")
    facts = dict(zip(info[0::2], info[1::2], strict=True))
    assert facts[b"entries-added"] == rows, "not all rows were written"
    client.close()


@functools.cache
def _batches() -> list[pa.RecordBatch]:
    random.seed(1)
    names = ("f", "g")
    return [
        pa.RecordBatch.from_pydict({n: [f"{random.randrange(10**8):012d}" for _ in range(_BATCH)] for n in names})
        for _ in range(40)
    ]


def task_rate(server: Running, exactly_once: bool, **options: str) -> float:
    """Return rows per second of a single task, without Spark."""
    batches = _batches()
    _empty(server)
    settings = {"url": f"redis://127.0.0.1:{server.port}/0", "stream": "s", "maxlen": str(_KEEP), **options}
    sink_options = SinkOptions.parse(settings)
    begun = time.perf_counter()
    task = SinkTask(Batch("bench", 0, begin_run(sink_options.address), expires=False)) if exactly_once else None
    written = append(batches, sink_options, task)
    rate = written.rows / (time.perf_counter() - begun)
    _check(server, written.rows)
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


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The server runs while the stack is open."""
    server = stack.enter_context(running("redis-server"))
    plain, once = {"delivery": "at-least-once"}, {"delivery": "exactly-once"}
    words = ["xadd", "s", "maxlen", "~", str(_KEEP), "*", "f", "__rand_int__", "g", "__rand_int__"]

    def benchmark_rate() -> float:
        return benchmark(server, "-P 100", 2.0, words)

    spark_write = f"df.write of {ROWS:,} rows of 2 columns from memory, local[2], maxlen ~ {_KEEP:,}"
    one_task = "400,000 rows, one task without Spark"
    return [
        Row("P9", "at least once", f"{spark_write}; redis-benchmark -P 100 {' '.join(words)}", "/s", 0.9,
            lambda: spark_rate(server, **plain), benchmark_rate, "redis-benchmark"),
        Row("P9", "at least once, one task", f"{one_task}, maxlen ~ {_KEEP:,}; redis-benchmark as above", "/s", None,
            lambda: task_rate(server, False), benchmark_rate, "redis-benchmark"),
        Row("P10", "at least once", f"{spark_write}; {_PEER_ROWS:,} rows by redis-py, pipelines of {_PIPELINE:,} in "
            "foreachPartition", "/s", None, lambda: spark_rate(server, **plain), lambda: redis_py_rate(server),
            "redis-py"),
        Row("P11", "exactly once", f"{spark_write}; the same at least once", "/s", 0.9,
            lambda: spark_rate(server, **once), lambda: spark_rate(server, **plain), "at least once"),
        Row("P11", "exactly once, one task", f"{one_task}; the same at least once", "/s", 0.9,
            lambda: task_rate(server, True), lambda: task_rate(server, False), "at least once"),
        Row("P11", "a batch of 100 rows, exactly once", "stream to stream, a trigger every second, triggerExecution, "
            "median of 7; the same at least once", "ms", None, lambda: small_batch(server, **once),
            lambda: small_batch(server, **plain), "at least once", at_least=False, rounds=3),
        Row("P12", "encode alone, 10 mixed columns", f"{_BATCH:,} rows; to_pylist and redis-py's pack_commands", "/s",
            10.0, encode_rate, redis_py_encode_rate, "redis-py"),
    ]  # fmt: skip
