"""The job that is killed: `python -m tools.chaos.job FILE` runs a file's queries in one Spark until all have ended.

FILE: {"master": "local[4]", "conf": {…}, "second_host": null, "in_turn": false, "queries": [Query, …]}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.connector.errors import find_in_text
from spark_streams.connector.running.run import may_have_more
from spark_streams.operations.verify.running_query import PATIENCE, Driver
from tools.chaos.query import SCHEMA, TRIGGERS, Query
from tools.chaos.sink import write_to_sink
from tools.chaos.source import ChaosDataSource

LOG4J = Path(__file__).resolve().parents[2] / "spark_streams" / "jobs" / "conf" / "log4j2.properties"
# For a fast start: these sessions run for seconds.
JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={LOG4J}"

STARTING_AT_ONCE = 2
TOO_SLOW = "Python worker failed to connect back"  # Spark waits ten seconds for that process
_RACE = "java.io.OptionalDataException"  # Spark serialises a task while another query changes a shared object


def session(master: str, conf: dict[str, str]) -> SparkSession:
    """Return a small Spark session that has format("rstream-chaos")."""
    builder = SparkSession.builder.master(master).appName("chaos")
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
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        # A query that stands still does not stop: do not wait for it for long.
        "spark.sql.streaming.stopTimeout": "10s",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(ChaosDataSource)
    return spark


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


def start(spark: SparkSession, query: Query) -> StreamingQuery:
    """Start a query when its name is free: Spark releases a name shortly after its query has become inactive."""
    deadline = time.monotonic() + 60
    while query.name in {query.name for query in spark.streams.active} and time.monotonic() < deadline:
        time.sleep(0.02)  # if it stays in use, start() below raises
    query.sign("ended").unlink(missing_ok=True)
    settings = {"url": query.url, "group": query.group, "startingOffsets": "earliest", **query.options}
    fault = {"chaos": json.dumps(query.to_json())}
    source = spark.readStream.format("rstream-chaos").schema(SCHEMA).options(**settings, **fault)
    writer = write_to_sink(source.load(), query, fault).queryName(query.name)
    writer = writer.option("checkpointLocation", str(query.path / "checkpoint"))
    return writer.trigger(**TRIGGERS[query.trigger]).start()


def error_of(running: StreamingQuery) -> str:
    """Return the error that ended a query in one line, or '' if there was none."""
    error = running.exception()
    return "" if error is None else find_in_text(str(error)) or str(error)


def main(file: str) -> None:
    """Run the queries of the file."""
    plan = json.loads(Path(file).read_text())
    waiting = [Query.from_json(fields) for fields in plan["queries"]]
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
        for query, streaming in list(running):
            is_active = streaming.isActive  # read once: the query may end at any moment
            error = "" if is_active else error_of(streaming)
            if _RACE in error or (TOO_SLOW in error and not query.sign("up").exists()):
                waiting.append(query)
                running.remove((query, streaming))
            elif not is_active and not error and may_have_more(streaming):
                running.remove((query, streaming))
                # As at its first start: not together with all others, and again if its process is too slow.
                query.sign("up").unlink(missing_ok=True)
                waiting.append(query)
            elif not is_active:
                query.sign("ended").write_text(error)
                running.remove((query, streaming))
            elif query.sign("stop").exists():
                streaming.stop()
        time.sleep(0.02)
    spark.stop()


# -- the job as a process ----------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[2]


class Job(Driver):
    """Queries in a separate Spark. As a context manager it leaves no process behind."""

    def __init__(
        self,
        folder: Path,
        queries: Sequence[Query],
        master: str = "local[4]",
        conf: dict[str, str] | None = None,
        in_turn: bool = False,
        second_host: str | None = None,
        program: str = "tools.chaos.job",
        more: Mapping[str, object] | None = None,
    ) -> None:
        """Start the job. program: module to run; more: additional fields of its plan."""
        self.queries = list(queries)
        folder.mkdir(parents=True, exist_ok=True)
        plan: dict[str, object] = {"master": master, "conf": conf or {}, "in_turn": in_turn, "second_host": second_host}
        plan |= more or {}
        number = len(list(folder.glob("plan-*.json")))
        (folder / f"plan-{number}.json").write_text(
            json.dumps({**plan, "queries": [query.to_json() for query in queries]})
        )
        for query in queries:
            for sign in ("up", "held", "ended", "stop", "go"):
                query.sign(sign).unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_CONF_DIR")}
        environment |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        if master.startswith("local-cluster"):
            environment["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        command = [sys.executable, "-m", program, str(folder / f"plan-{number}.json")]
        super().__init__(command, folder, environment, folder / f"log-{number}.txt")

    def wait_for(self, condition: Callable[[], bool], awaited: str, may_fail: Sequence[Query] = ()) -> None:
        """Wait until the condition is true. Raises JobFailed if the job or one of its queries ends before."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            for query in self.queries:
                if query.ended() and query not in may_fail:
                    raise JobFailed(f"query {query.name} ended before {awaited}: {query.ended()}")
            if self.process.poll() is not None and not condition():
                raise JobFailed(f"the job ended with {self.process.returncode} before {awaited}:\n{self.log()}")
            if time.monotonic() > deadline:
                states = {q.name: (q.logged(), q.committed(), q.held(), q.ended()) for q in self.queries}
                raise JobFailed(
                    f"waited {PATIENCE:g} s for: {awaited}; (logged, committed, held, ended): {states}\n{self.log()}"
                )
            time.sleep(0.02)

    def finish(self, may_fail: Sequence[Query] = ()) -> None:
        """Wait for all queries to end. Raises JobFailed if a query ends with an unexpected error."""
        self.wait_for(lambda: all(q.ended() is not None for q in self.queries), "the end", may_fail)
        for query in self.queries:
            if query.ended() and query not in may_fail:
                raise JobFailed(f"query {query.name}: {query.ended()}")


class JobFailed(Exception):  # noqa: N818 - shorter in a report
    """The job or one of its queries failed, or took too long."""


if __name__ == "__main__":
    main(sys.argv[1])
