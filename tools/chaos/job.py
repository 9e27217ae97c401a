"""The job that is killed: `python -m tools.chaos.job FILE` runs a file's queries in one Spark until all have ended.

FILE: {"master": "local[4]", "conf": {…}, "second_host": null, "in_turn": false, "queries": [Query, …]}
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.errors import find_in_text
from spark_streams.running.run_until_drained import may_have_more
from tools.chaos.query import SCHEMA, TRIGGERS, Query
from tools.chaos.sink import write_to_sink
from tools.chaos.source import ChaosDataSource

LOG4J = Path(__file__).resolve().parents[2] / "conf" / "log4j2.properties"
# Quick to start: these sessions live for seconds.
JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={LOG4J}"

STARTING_AT_ONCE = 2
TOO_SLOW = "Python worker failed to connect back"  # Spark gives that process ten seconds
_RACE = "java.io.OptionalDataException"  # Spark serialises a task while another query changes what it shares with it


def session(master: str, conf: dict[str, str]) -> SparkSession:
    """A small Spark that knows format("rstream-chaos")."""
    builder = SparkSession.builder.master(master).appName("chaos")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # An idle query asks its source every 10 ms otherwise, which others on the machine pay for.
        "spark.sql.streaming.pollingDelay": "100ms",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        # A query that is told to stop while it stands still is not waited for.
        "spark.sql.streaming.stopTimeout": "10s",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(ChaosDataSource)
    return spark


def add_worker(spark: SparkSession, host: str) -> None:
    """One more worker of a local-cluster, under another host name: Spark runs no twin of a task on the same host."""
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
    while context.getExecutorMemoryStatus().size() < 3:  # the driver's own is one
        if time.monotonic() > deadline:
            raise TimeoutError(f"no executor came up on {host}")
        time.sleep(0.05)


def start(spark: SparkSession, query: Query) -> StreamingQuery:
    """Start one query when its name is free: Spark releases a name a moment after its query has become inactive."""
    deadline = time.monotonic() + 60
    while query.name in {one.name for one in spark.streams.active} and time.monotonic() < deadline:
        time.sleep(0.02)  # where it stays taken, Spark says so below
    query.sign("ended").unlink(missing_ok=True)
    given = {"url": query.url, "group": query.group, "startingOffsets": "earliest", **query.options}
    fault = {"chaos": json.dumps(query.to_json())}
    source = spark.readStream.format("rstream-chaos").schema(SCHEMA).options(**given, **fault)
    writer = write_to_sink(source.load(), query, fault).queryName(query.name)
    writer = writer.option("checkpointLocation", str(query.path / "checkpoint"))
    return writer.trigger(**TRIGGERS[query.trigger]).start()


def error_of(running: StreamingQuery) -> str:
    """Why a query ended, in one line; '' where nothing went wrong."""
    error = running.exception()
    return "" if error is None else find_in_text(str(error)) or str(error)


def main(file: str) -> None:
    """Run the queries of the file."""
    plan = json.loads(Path(file).read_text())
    waiting = [Query.from_json(one) for one in plan["queries"]]
    spark = session(plan["master"], plan["conf"])
    if plan["second_host"]:
        add_worker(spark, plan["second_host"])
    running: list[tuple[Query, StreamingQuery]] = []
    while waiting or running:
        while waiting and sum(not query.sign("up").exists() for query, _ in running) < STARTING_AT_ONCE:
            if running and plan["in_turn"]:
                break
            query = waiting.pop(0)
            running.append((query, start(spark, query)))
        for query, one in list(running):
            is_active = one.isActive  # asked once: it may end meanwhile
            error = "" if is_active else error_of(one)
            if _RACE in error or (TOO_SLOW in error and not query.sign("up").exists()):
                waiting.append(query)
                running.remove((query, one))
            elif not is_active and not error and may_have_more(one):
                running.remove((query, one))
                # As one that begins: not with all others at once, and again where its process comes too late.
                query.sign("up").unlink(missing_ok=True)
                waiting.append(query)
            elif not is_active:
                query.sign("ended").write_text(error)
                running.remove((query, one))
            elif query.sign("stop").exists():
                one.stop()
        time.sleep(0.02)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
