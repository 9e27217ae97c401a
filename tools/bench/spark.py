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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

import spark_streams
from tools.bench.servers import Running, request
from tools.waiting import until

SCHEMA = "carrier STRING, flight INT, delay DOUBLE"
_CHUNK = 10_000
_LOG4J = Path(__file__).resolve().parents[2] / "spark_streams" / "jobs" / "conf" / "log4j2.properties"
PATIENCE = 120.0  # seconds that a trigger may take


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
    server.call("DEL", stream)
    append(server, stream, count)


def append(server: Running, stream: str, count: int) -> None:
    """Append `count` entries to a stream, rounded down to chunks of 10,000."""
    chunk = entries(stream, _CHUNK)
    with server.client() as client:
        for _ in range(count // _CHUNK):
            client.send(chunk, _CHUNK)


def source(url: str, schema: str = SCHEMA, **options: Any) -> DataFrame:
    """Return the source for group `g` of the streams that the options name."""
    settings = {"url": url, "group": "g", "startingOffsets": "earliest"}
    settings |= {name: str(value) for name, value in options.items()}
    return session().readStream.format("rstream").schema(schema).options(**settings).load()


@contextlib.contextmanager
def running(frame: DataFrame, interval: str = "", **sink: str) -> Iterator[StreamingQuery]:
    """Run a query from the frame with a new checkpoint, and stop it at the end. interval: between two triggers; empty:
    AvailableNow; sink: options of a sink of this package; none: noop."""
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as folder:
        writer = frame.writeStream.format("rstream" if sink else "noop").options(**sink, checkpointLocation=folder)
        writer = writer.trigger(processingTime=interval) if interval else writer.trigger(availableNow=True)
        with started(writer.start()) as query:
            yield query


@contextlib.contextmanager
def started(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop a query at the end of the block."""
    try:
        yield query
    finally:
        query.stop()


def wait(condition: Callable[[], object], *queries: StreamingQuery) -> None:
    """Wait until the condition is true. Raises the error of a query that has failed."""

    def is_met() -> bool:
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
        return bool(condition())

    until(is_met, f"the query did not go on within {PATIENCE:g} s", PATIENCE)


def _batches(frame: DataFrame) -> tuple[list[StreamingQueryProgress], float]:
    """Return the batches with rows of an AvailableNow run, and when it ended."""
    with running(frame) as query:
        query.awaitTermination()
        ended = time.time()
        return [progress for progress in query.recentProgress if progress.numInputRows], ended


def steady_rate(frame: DataFrame, expected: int) -> float:
    """Return rows per second of an AvailableNow run from its second batch to its end. The first is a warm-up."""
    batches, ended = _batches(frame)
    assert sum(progress.numInputRows for progress in batches) == expected, "not all entries were read"
    return float(sum(progress.numInputRows for progress in batches[1:]) / (ended - begin_of(batches[1])))


def rate_of_one_batch(frame: DataFrame, expected: int) -> float:
    """Return rows per second of an AvailableNow run that reads all in one batch (triggerExecution)."""
    batches, _ = _batches(frame)
    assert [progress.numInputRows for progress in batches] == [expected], "not one batch of all entries"
    return float(expected / (batches[0].durationMs["triggerExecution"] / 1000))


def rate_of_batches(frame: DataFrame, count: int) -> float:
    """Return rows per second of `count` consecutive batches, after a first batch that is left out."""
    with running(frame, "0 seconds") as query:
        batches: list[Any] = []
        while len(batches) <= count:
            batches.append(next_batch(query, batches[-1].batchId if batches else -1))
    assert [progress.batchId for progress in batches] == list(range(count + 1)), (
        "a batch followed before the progress of the previous one was read"
    )
    ended = begin_of(batches[-1]) + batches[-1].durationMs["triggerExecution"] / 1000
    return float(sum(progress.numInputRows for progress in batches[1:]) / (ended - begin_of(batches[1])))


def begin_of(progress: Any) -> float:
    """Return the start of a batch in seconds since the epoch."""
    return datetime.datetime.fromisoformat(progress.timestamp).timestamp()


def trigger_time(frame: DataFrame, rows: int, add: Callable[[], None] | None, interval: str) -> float:
    """Return the median milliseconds of seven triggers with `rows` rows, as `trigger_time_of`."""
    with running(frame, interval) as query:
        return trigger_time_of(query, rows, 7, add)


def trigger_time_of(query: StreamingQuery, rows: int, count: int, add: Callable[[], None] | None) -> float:
    """Return the median milliseconds of `count` triggers with `rows` rows; the first three triggers are left out.

    `add` adds the rows of one trigger. It is called again after they are read.
    """
    times: list[float] = []
    seen, pause = -1, 0.0
    wait(lambda: query._jsq.lastProgress() is not None, query)
    while len(times) < count + 3:
        if add is not None:
            time.sleep(pause)  # the trigger after a batch ends before the next rows: it would read some of them
            add()
        progress = next_batch(query, seen)
        seen, pause = progress.batchId, progress.durationMs["triggerExecution"] / 1000
        if progress.numInputRows == rows:
            times.append(progress.durationMs["triggerExecution"])
    return statistics.median(times[3:])


def next_batch(query: StreamingQuery, seen: int) -> Any:
    """Return the progress of the next batch with rows, after the batch with this number."""
    latest: Any = None

    def is_there() -> bool:
        # query.lastProgress copies all offsets with each call: 30 MB for 100,000 streams.
        nonlocal latest
        latest = query._jsq.lastProgress()
        return latest is not None and latest.batchId() > seen and latest.numInputRows()

    wait(is_there, query)
    return StreamingQueryProgress.fromJson(json.loads(latest.json()))
