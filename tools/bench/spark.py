"""Spark for the rows that measure it: one session, and queries from a stream into `noop`."""

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
    """Return a session with local[2], the same for the whole process."""
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
        .config("spark.python.unix.domain.socket.enabled", "true")  # as in conf/spark-defaults.conf
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG4J}")
        .getOrCreate()
    )
    spark_streams.register(spark)
    return spark


def entries(stream: str, count: int) -> bytes:
    """Return `count` XADD commands with three small fields, encoded."""
    return b"".join(
        request("XADD", stream, "*", "carrier", ("UA", "AA", "B6", "DL", "EV")[number % 5],
                "flight", number * 7919 % 8500, "delay", f"{number % 2200 / 10 - 20:.1f}")
        for number in range(count)
    )  # fmt: skip


def load(server: Running, stream: str, count: int) -> None:
    """Replace a stream by `count` entries, rounded down to chunks of 10,000."""
    client = server.client()
    chunk = entries(stream, _CHUNK)
    client.call("DEL", stream)
    for _ in range(count // _CHUNK):
        client.socket.sendall(chunk)
        client.take(_CHUNK)
    client.close()


def stream(server: Running, streams: str, **options: Any) -> DataFrame:
    """Return the source for group `g` of these streams."""
    settings = {
        "url": f"redis://127.0.0.1:{server.port}/0", "streams": streams, "group": "g", "startingOffsets": "earliest",
        **{name: str(value) for name, value in options.items()},
    }  # fmt: skip
    return session().readStream.format("rstream").schema(SCHEMA).options(**settings).load()


@contextlib.contextmanager
def running(frame: DataFrame, **trigger: Any) -> Any:
    """Run a query from the frame to noop with a new checkpoint, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).trigger(**trigger).start()
        try:
            yield query
        finally:
            query.stop()


def steady_rate(frame: DataFrame, expected: int) -> float:
    """Return rows per second of an AvailableNow run from its second batch to its end. The first is a warm-up."""
    with running(frame, availableNow=True) as query:
        query.awaitTermination()
        ended = time.time()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
    assert sum(progress.numInputRows for progress in batches) == expected, "not all entries were read"
    return float(sum(progress.numInputRows for progress in batches[1:]) / (ended - started(batches[1])))


def rate_of_batches(frame: DataFrame, count: int) -> float:
    """Return rows per second of `count` consecutive batches, after a first batch that is left out."""
    with running(frame, processingTime="0 seconds") as query:
        seen = -1
        batches: list[Any] = []
        while len(batches) <= count:
            batches.append(_next_batch(query, seen))
            seen = batches[-1].batchId
    assert [progress.batchId for progress in batches] == list(range(count + 1)), (
        "a batch followed before the progress of the previous one was read"
    )
    ended = started(batches[-1]) + batches[-1].durationMs["triggerExecution"] / 1000
    return float(sum(progress.numInputRows for progress in batches[1:]) / (ended - started(batches[1])))


def started(progress: Any) -> float:
    """Return the start of a batch in seconds since the epoch."""
    return datetime.datetime.fromisoformat(progress.timestamp).timestamp()


def trigger_time(frame: DataFrame, rows: int, count: int, add: Callable[[], None] | None, interval: str) -> float:
    """Return the median milliseconds of `count` triggers with `rows` rows; the first three triggers are left out.

    `add` adds the rows of one trigger. It is called again after they are read.
    """
    times: list[float] = []
    seen = -1
    with running(frame, processingTime=interval) as query:
        _wait_for_progress(query)
        while len(times) < count + 3:
            if add is not None:
                add()
            progress = _next_batch(query, seen)
            seen = progress.batchId
            if progress.numInputRows == rows:
                times.append(progress.durationMs["triggerExecution"])
    return statistics.median(times[3:])


def _wait_for_progress(query: StreamingQuery) -> None:
    """Wait until the query has completed its first trigger."""
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
        raise TimeoutError(f"the query did not complete its next batch within {_PATIENCE:g} s")
    time.sleep(0.02)
