"""Spark for the rows that measure it: one session, and queries from a stream into `noop`."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

import spark_streams
from tools.bench.client import request
from tools.bench.servers import Running

SCHEMA = "carrier STRING, flight INT, delay DOUBLE"
_CHUNK = 10_000
_LOG4J = Path(__file__).resolve().parents[2] / "spark_streams" / "jobs" / "conf" / "log4j2.properties"
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
        .config("spark.python.unix.domain.socket.enabled", "true")  # these two as in conf/spark-defaults.conf
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
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
    client.call("DEL", stream)
    client.close()
    append(server, stream, count)


def append(server: Running, stream: str, count: int) -> None:
    """Append `count` entries to a stream, rounded down to chunks of 10,000."""
    client = server.client()
    chunk = entries(stream, _CHUNK)
    for _ in range(count // _CHUNK):
        client.socket.sendall(chunk)
        client.take(_CHUNK)
    client.close()


def stream(server: Running, streams: str, **options: Any) -> DataFrame:
    """Return the source for group `g` of these streams."""
    return source(server, SCHEMA, streams=streams, **options)


def source(server: Running, schema: str, **options: Any) -> DataFrame:
    """Return the source for group `g` of the streams that the options name."""
    settings = {
        "url": f"redis://127.0.0.1:{server.port}/0", "group": "g", "startingOffsets": "earliest",
        **{name: str(value) for name, value in options.items()},
    }  # fmt: skip
    return session().readStream.format("rstream").schema(schema).options(**settings).load()


@contextlib.contextmanager
def running(frame: DataFrame, sink: str = "noop", sink_options: dict[str, str] | None = None, **trigger: Any) -> Any:
    """Run a query from the frame to a sink with a new checkpoint, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as folder:
        options = {**(sink_options or {}), "checkpointLocation": folder}
        query = frame.writeStream.format(sink).options(**options).trigger(**trigger).start()
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


def rate_of_one_batch(frame: DataFrame, expected: int) -> float:
    """Return rows per second of an AvailableNow run that reads all in one batch (triggerExecution)."""
    with running(frame, availableNow=True) as query:
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
    assert [progress.numInputRows for progress in batches] == [expected], "not one batch of all entries"
    return float(expected / (batches[0].durationMs["triggerExecution"] / 1000))


def rate_of_batches(frame: DataFrame, count: int) -> float:
    """Return rows per second of `count` consecutive batches, after a first batch that is left out."""
    with running(frame, processingTime="0 seconds") as query:
        seen = -1
        batches: list[Any] = []
        while len(batches) <= count:
            batches.append(next_batch(query, seen))
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
    with running(frame, processingTime=interval) as query:
        return trigger_time_of(query, rows, count, add)


def trigger_time_of(query: StreamingQuery, rows: int, count: int, add: Callable[[], None] | None) -> float:
    """Return the same of a query that runs."""
    times: list[float] = []
    seen, pause = -1, 0.0
    _wait_for_progress(query)
    while len(times) < count + 3:
        if add is not None:
            time.sleep(pause)  # the trigger after a batch ends before the next rows: it would read some of them
            add()
        progress = next_batch(query, seen)
        seen, pause = progress.batchId, progress.durationMs["triggerExecution"] / 1000
        if progress.numInputRows == rows:
            times.append(progress.durationMs["triggerExecution"])
    return statistics.median(times[3:])


def _wait_for_progress(query: StreamingQuery) -> None:
    """Wait until the query has completed its first trigger."""
    deadline = time.monotonic() + _PATIENCE
    while query._jsq.lastProgress() is None:
        _check(query, deadline)


def next_batch(query: StreamingQuery, seen: int) -> Any:
    """Return the progress of the next batch with rows, after the batch with this number."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        # query.lastProgress copies all offsets with each call: 30 MB for 100,000 streams.
        latest = query._jsq.lastProgress()
        if latest is not None and latest.batchId() > seen and latest.numInputRows():
            return StreamingQueryProgress.fromJson(json.loads(latest.json()))
        _check(query, deadline)


def _check(query: StreamingQuery, deadline: float) -> None:
    error = query.exception()
    if error is not None:
        raise error
    if time.monotonic() > deadline:
        raise TimeoutError(f"the query did not complete its next batch within {_PATIENCE:g} s")
    time.sleep(0.02)
