"""The Spark of some queries: `python -m tools.chaos.program FOLDER`, a process that can be killed.

FOLDER/spark.json: {"parent": its pid, "threads": 2, "on_executors": false}. Each FOLDER/*.query is a Query that starts
when the file appears. The process lives as long as its parent. What is done with the rows of a query, by its `sink`:

    attempts    files, exactly once by construction: a repeated batch replaces its files; every row is recorded
    parquet     files, as a user would write them
    stream      the Redis Streams sink, exactly once
    shards      the same into shards by key, in order
    retries     a rule accepts an entry at its attempt number `right_at`, and sends it to be retried before
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams
from spark_streams.connector.errors import find_in_text
from spark_streams.connector.running.run import may_have_more
from spark_streams.operations.verify.running_query import SCHEMA
from tools.chaos.query import Query
from tools.chaos.struck import Attempt, ChaosDataSource, stand_still, struck

ROOT = Path(__file__).resolve().parents[2]
# For a fast start: these sessions run for seconds.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    f"-Dlog4j2.configurationFile={ROOT}/spark_streams/jobs/conf/log4j2.properties"
)
TOO_SLOW = "Python worker failed to connect back"  # Spark waits ten seconds for that process
_RACE = "java.io.OptionalDataException"  # Spark serialises a task while another query changes a shared object
_STARTING_AT_ONCE = 2
_TRIGGERS: dict[str, dict[str, Any]] = {
    "always": {"processingTime": "0 seconds"},
    "now": {"availableNow": True},
    "once": {"once": True},
}
_SCHEMAS = {
    "shards": "key STRING, n LONG",
    "retries": f"{SCHEMA}, right_at INT, _attempt INT, _first_failed TIMESTAMP, _fields MAP<BINARY, BINARY>",
}


# -- Spark -------------------------------------------------------------------------------------------------------------


def session(threads: int, on_executors: bool) -> SparkSession:
    """Return a small session that has format("rstream-chaos"). A task is tried four times."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # The default, 10 ms, takes processor time from the other queries on the machine.
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.python.daemon.module": "tools.python_daemon",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    if on_executors:
        settings |= {
            "spark.executor.memory": "512m",
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.multiplier": "1.5",
        }
    master = "local-cluster[1,1,512]" if on_executors else f"local[{threads},4]"
    spark = SparkSession.builder.config(map={"spark.app.name": "chaos", "spark.master": master, **settings})
    made = spark_streams.register(spark.getOrCreate())
    made.dataSource.register(ChaosDataSource)
    if on_executors:
        add_worker(made, "127.0.0.2")
    return made


def add_worker(spark: SparkSession, host: str) -> None:
    """Add a worker to a local-cluster under another host name: Spark runs no speculative task on the same host."""
    jvm, context = spark.sparkContext._jvm, spark.sparkContext._jsc.sc()
    assert jvm is not None
    backend = context.schedulerBackend()
    masters = backend.getClass().getDeclaredField("masters")
    masters.setAccessible(True)
    none = jvm.scala.Option.apply(None)
    jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
        host, 0, 0, 1, 512, masters.get(backend), None, jvm.scala.Option.apply(2), context.conf(), none
    )
    deadline = time.monotonic() + 60
    while context.getExecutorMemoryStatus().size() < 3:  # the driver is one of them
        if time.monotonic() > deadline:
            raise TimeoutError(f"no executor started on {host} within 60 s")
        time.sleep(0.05)


# -- the sinks ---------------------------------------------------------------------------------------------------------


def writer(spark: SparkSession, query: Query) -> DataStreamWriter:
    """Return the query, ready to start."""
    options = {"url": query.url, "startingOffsets": "earliest", **query.options, "chaos": query.to_json()}
    source = spark.readStream.format("rstream-chaos").options(**options)
    rows = source.schema(_SCHEMAS.get(query.sink, SCHEMA)).load()
    sink = {"url": query.out_address, "stream": query.out, **query.out_options}
    if query.sink == "shards":
        return rows.writeStream.format("rstream").options(**sink)
    if query.sink == "stream":
        columns = [F.col("p"), F.col("n"), F.col("_stream").alias("source"), F.col("_id").alias("entry")]
        if query.routed:
            columns.append(F.concat(F.lit(f"{query.out}:"), F.col("_stream")).alias("to"))
            del sink["stream"]
            sink["streamColumn"] = "to"
        chaos = {"chaos": query.to_json()}
        return rows.select(*columns).writeStream.format("rstream-chaos").options(**sink, **chaos)
    if query.sink == "retries":
        rows = rows.withColumn("now", F.current_timestamp())
    write = {"attempts": _write_attempts, "parquet": _write_parquet, "retries": _write_or_retry}[query.sink]

    def batch(rows: DataFrame, number: int) -> None:
        write(rows, number, query)
        stand_still(query, "written", number)

    return rows.writeStream.foreachBatch(batch)


def _write_attempts(rows: DataFrame, number: int, query: Query) -> None:
    run = time.time_ns()

    def write(rows: Iterable[Row]) -> Iterable[str]:
        attempt = Attempt(query, number, run)
        batches = (pa.RecordBatch.from_pylist([row.asDict()]) for row in rows)
        for _ in attempt.recorded(struck(batches, query, "writing")):
            pass
        attempt.succeeded()
        yield attempt.name

    files = rows.rdd.mapPartitions(write).collect()
    stand_still(query, "closing", number)
    # The names of the committed attempts, written atomically.
    (query.path / "batches").mkdir(exist_ok=True)
    unfinished = query.path / "batches" / f"{number}.part"
    unfinished.write_text(json.dumps(files))
    unfinished.replace(unfinished.with_suffix(".json"))


def _write_parquet(rows: DataFrame, number: int, query: Query) -> None:
    rows.write.mode("overwrite").parquet(str(query.path / "parquet" / f"batch={number}"))
    stand_still(query, "closing", number)


def _write_or_retry(rows: DataFrame, number: int, query: Query) -> None:
    rows = rows.persist()
    good, letters = spark_streams.route_dead_letters(
        rows, "_attempt < right_at", "not yet", group=query.group, consumer="spark", at=F.col("now"),
        retry_delay=query.options["retryDelay"],
    )  # fmt: skip
    place = (F.col("_stream").alias("source"), F.col("_id").alias("entry"))
    good = good.select("p", "n", *place, F.col("_attempt").alias("attempt"))
    for part, options in (
        (good, {"stream": query.out, "transaction": "rows"}),
        (letters, {"stream": query.options["deadLetterStream"], "streamColumn": "_to", "transaction": "letters"}),
    ):
        part.write.format("rstream").mode("append").options(url=query.url, **options).save()
    rows.unpersist()


# -- the process -------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, query: Query, starting: threading.Semaphore) -> None:
    """Run a query to its end, in a thread of its own."""
    jvm: Any = spark.sparkContext._jvm
    jvm.SparkSession.setActiveSession(spark._jsparkSession)  # of this thread: Spark looks for formats there
    try:
        error = _run(spark, query, starting)
    except Exception as problem:  # noqa: BLE001 - the scene reports it
        error = f"{type(problem).__name__}: {problem}"
    query.sign("ended").write_text(error)


def _run(spark: SparkSession, query: Query, starting: threading.Semaphore) -> str:
    """Run a query, again if Spark has lost a race or ends it before everything is read. Return its error, or ''."""
    while True:
        query.sign("up").unlink(missing_ok=True)
        with starting:
            running = writer(spark, query).option("checkpointLocation", f"{query.folder}/checkpoint")
            streaming = running.trigger(**_TRIGGERS[query.trigger]).start()
            while streaming.isActive and not query.has("up"):
                time.sleep(0.02)
        error = _end_of(streaming, query)
        is_too_slow = _RACE in error or (TOO_SLOW in error and not query.has("up"))
        if not is_too_slow and (error or not may_have_more(streaming)):
            return error


def _end_of(streaming: StreamingQuery, query: Query) -> str:
    """Wait until a query has ended, or stop it. Return its error in one line, or ''."""
    while streaming.isActive:
        if query.has("stop"):
            streaming.processAllAvailable()
            streaming.stop()
        time.sleep(0.02)
    error = streaming.exception()
    return "" if error is None else find_in_text(str(error)) or str(error)


def main(folder: Path) -> None:
    """Run the queries that are given, until the process that started this one has ended."""
    plan = json.loads((folder / "spark.json").read_text())
    spark, starting = session(plan["threads"], plan["on_executors"]), threading.Semaphore(_STARTING_AT_ONCE)
    while True:
        for file in sorted(folder.glob("*.query")):
            query = Query.from_json(file.read_text())
            file.unlink()
            threading.Thread(target=run, args=(spark, query, starting), daemon=True).start()
        os.kill(plan["parent"], 0)  # an error if that process has ended
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
