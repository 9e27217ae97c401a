"""Spark for rows that measure it: one session, and queries from a stream into `noop`."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_streams
from tools.bench.client import request
from tools.bench.servers import Running

SCHEMA = "carrier STRING, flight INT, delay DOUBLE"
_CHUNK = 10_000
_LOG4J = Path(__file__).resolve().parents[2] / "conf" / "log4j2.properties"
_PATIENCE = 120.0  # seconds that a trigger may take


@functools.cache
def session() -> SparkSession:
    """local[2], as long as the process lives."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")  # as the jobs have it
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG4J}")
        .getOrCreate()
    )
    spark_streams.register(spark)
    return spark


def entries(stream: str, count: int) -> bytes:
    """XADDs of so many entries of three small fields, in wire form."""
    return b"".join(
        request("XADD", stream, "*", "carrier", ("UA", "AA", "B6", "DL", "EV")[at % 5], "flight", at * 7919 % 8500,
                "delay", f"{at % 2200 / 10 - 20:.1f}")
        for at in range(count)
    )  # fmt: skip


def load(server: Running, stream: str, count: int) -> None:
    """A stream with so many entries, in whole chunks."""
    client = server.client()
    chunk = entries(stream, _CHUNK)
    client.call("DEL", stream)
    for _ in range(count // _CHUNK):
        client.socket.sendall(chunk)
        client.take(_CHUNK)
    client.close()


def stream(server: Running, streams: str, **options: Any) -> DataFrame:
    """The source: group g of these streams."""
    given = {
        "url": f"redis://127.0.0.1:{server.port}/0", "streams": streams, "group": "g", "startingOffsets": "earliest",
        **{name: str(value) for name, value in options.items()},
    }  # fmt: skip
    return session().readStream.format("rstream").schema(SCHEMA).options(**given).load()


@contextlib.contextmanager
def running(frame: DataFrame, **trigger: Any) -> Any:
    """The query frame → noop with a checkpoint of its own, stopped in the end."""
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).trigger(**trigger).start()
        try:
            yield query
        finally:
            query.stop()


def steady_rate(frame: DataFrame, expected: int) -> float:
    """Rows per second of an AvailableNow run from its second batch to its end; the first one warms the JVM up."""
    with running(frame, availableNow=True) as query:
        query.awaitTermination()
        ended = time.time()
        batches = [one for one in query.recentProgress if one.numInputRows]
    assert sum(one.numInputRows for one in batches) == expected, "not all entries were read"
    return float(sum(one.numInputRows for one in batches[1:]) / (ended - started(batches[1])))


def rate_of_batches(frame: DataFrame, count: int) -> float:
    """Rows per second of so many batches, one behind the other, after a first one that is left out."""
    with running(frame, processingTime="0 seconds") as query:
        seen = -1
        batches: list[Any] = []
        while len(batches) <= count:
            batches.append(_next_batch(query, seen))
            seen = batches[-1].batchId
    assert [one.batchId for one in batches] == list(range(count + 1)), "a batch came too soon to be seen"
    ended = started(batches[-1]) + batches[-1].durationMs["triggerExecution"] / 1000
    return float(sum(one.numInputRows for one in batches[1:]) / (ended - started(batches[1])))


def started(progress: Any) -> float:
    """When a batch began, seconds since the epoch."""
    return datetime.datetime.fromisoformat(progress.timestamp).timestamp()


def trigger_time(frame: DataFrame, rows: int, count: int, add: Callable[[], None] | None, every: str) -> float:
    """The median milliseconds of `count` triggers of so many rows; the first three are left out. add: makes the rows
    of one trigger, once those of the last one are read."""
    took: list[float] = []
    seen = -1
    with running(frame, processingTime=every) as query:
        _settle_in(query)
        while len(took) < count + 3:
            if add is not None:
                add()
            progress = _next_batch(query, seen)
            seen = progress.batchId
            if progress.numInputRows == rows:
                took.append(progress.durationMs["triggerExecution"])
    return statistics.median(took[3:])


def _settle_in(query: StreamingQuery) -> None:
    """Wait until the query has looked at its source once."""
    deadline = time.monotonic() + _PATIENCE
    while query.lastProgress is None:
        _check(query, deadline)


def _next_batch(query: StreamingQuery, seen: int) -> Any:
    deadline = time.monotonic() + _PATIENCE
    while True:
        progress = query.lastProgress
        if progress is not None and progress.numInputRows and progress.batchId > seen:
            return progress
        _check(query, deadline)


def _check(query: StreamingQuery, deadline: float) -> None:
    error = query.exception()
    if error is not None:
        raise error
    if time.monotonic() > deadline:
        raise TimeoutError("a query did not come to its next batch")
    time.sleep(0.02)
