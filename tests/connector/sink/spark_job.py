"""Spark jobs for test_in_spark.py, each in a process: `python -m tests.connector.sink.spark_job NAME folder url …`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.connector.running.run import may_have_more
from tests.connector.sink.faulty import FaultySource
from tools.chaos.program import JAVA_OPTIONS, TOO_SLOW, add_worker

ROWS = 6_000
KILLED = ("hold-write", "hold-commit")


def session(master: str, **settings: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("sink").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.sql.shuffle.partitions": "2",
        # An idle query asks its source every 10 ms otherwise, which others on the machine pay for.
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.python.daemon.module": "tools.python_daemon",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(FaultySource)
    return spark


def tasks(folder: Path, urls: list[str]) -> None:
    """Tasks, workers, executors die in mid-write and twins race; each into a stream of the fault's name."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    speculate = {
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.interval": "50ms",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    spark = session("local-cluster[1,1,512]", **speculate)
    add_worker(spark, "127.0.0.2")
    for at, url in enumerate(urls):
        for fault in ("raise", "exit", "slow", "executor"):
            place = folder / str(at)
            place.mkdir(exist_ok=True)
            # A shuffle before the sink: another attempt's rows come in another order.
            rows = spark.range(0, ROWS, 1, 2).repartition(2).selectExpr("id AS n", "concat('row ', id) AS text")
            rows.write.format("rstream-faulty").mode("append").options(
                url=url, stream=fault, fault=fault, faultFolder=str(place), chunkSize="250"
            ).save()
    spark.stop()


def query(folder: Path, urls: list[str], partitions: int) -> None:
    """For each fault a query: stream `in` → repartition → a stream of the fault's name, a batch at a time, until all is
    through; the fault happens in the first batch of the first run."""
    spark = session("local[4]")
    running: list[tuple[DataStreamWriter, StreamingQuery]] = []
    for at, url in enumerate(urls):
        for fault in KILLED:
            place = folder / str(at) / fault
            place.mkdir(exist_ok=True, parents=True)
            rows = (
                spark.readStream.format("rstream")
                .schema("n LONG, text STRING")
                .options(url=url, streams="in", group=fault, startingOffsets="earliest", maxEntriesPerTrigger="2000")
                .load()
                .repartition(partitions)
            )
            writer = rows.writeStream.format("rstream-faulty").options(
                url=url, stream=fault, fault=fault, faultFolder=str(place), chunkSize="200"
            )
            writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
            running.append((writer, writer.start()))
    while running:
        for one in [one for one in running if not one[1].isActive]:
            running.remove(one)
            writer, ended = one
            error = ended.exception()
            if error is not None and TOO_SLOW not in str(error):
                raise error
            if error is not None or may_have_more(ended):
                running.append((writer, writer.start()))
        time.sleep(0.02)
    spark.stop()


if __name__ == "__main__":
    name, place, *given = sys.argv[1:]
    started = time.time()
    if name == "tasks":
        tasks(Path(place), given)
    else:
        query(Path(place), given[1:], int(given[0]))
    print(f"done in {time.time() - started:.1f} s")
