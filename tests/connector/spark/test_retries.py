"""retryDelay in Spark: rows that the query's own rules refuse, and entries that do not fit, come back by themselves."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from spark_streams import route_dead_letters
from spark_streams.connector.errors import ConfigError, InvalidOptionError, SchemaError
from spark_streams.connector.keys import retry_stream
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from spark_streams.jobs.job import Job
from spark_streams.jobs.programs import etl
from tests.connector.spark.streams import append, read_stream
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.spark

SCHEMA = (
    "n INT, right_at INT, _stream STRING, _id STRING, _attempt INT, _first_failed TIMESTAMP, "
    "_fields MAP<BINARY, BINARY>"
)
DELAYS = "100ms,200ms"


def wait_until_nothing_waits(server: Server, dead: int, stream: str = "dead") -> None:
    """Wait until there are so many dead letters, and no entry waits for its retry."""
    with server.client() as client:

        def waiting() -> dict[bytes, int]:
            return {name: count for name in client.scan_iter("rstream:ret*") if (count := client.xlen(name))}

        until(
            lambda: client.xlen(stream) >= dead and not waiting(),
            f"there are no {dead} dead letters, or entries wait for a retry",
            60,
            log=lambda: f"entries by retry stream: {waiting()}",
        )


def test_rules_and_types_send_entries_to_wait_and_each_is_processed_once_or_dead(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """An entry is right at its first try, its second, its third, or never; or its number is none."""
    with server.client() as client:
        for n in range(20):
            client.xadd("{o}s", {"n": n, "right_at": 1 + n % 4})
        client.xadd("{o}s", {"n": "none", "right_at": 1})
    seen: list[tuple[int, int, bool]] = []

    def write(rows: DataFrame, number: int) -> None:
        good, letters = route_dead_letters(
            rows, "_attempt < right_at", "too soon", group="g", consumer="spark", at=F.col("now"), retry_delay=DELAYS
        )
        tries = good.select("n", "_attempt", "_first_failed")  # Spark 4.0 collects no map whose keys are bytes
        seen.extend((row["n"], row["_attempt"], row["_first_failed"] is None) for row in tries.collect())
        once = letters.write.format("rstream").mode("append").option("transaction", "letters")
        once.options(url=server.url, stream="dead", streamColumn="_to").save()

    rows = read_stream(
        spark, server, SCHEMA, streams="{o}s", retryDelay=DELAYS, mode="DEADLETTER", deadLetterStream="dead"
    ).withColumn("now", F.current_timestamp())
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        wait_until_nothing_waits(server, dead=6)
        progress = query.lastProgress
    finally:
        query.stop()
    assert sorted(seen) == [(n, 1 + n % 4, n % 4 == 0) for n in range(20) if n % 4 < 3]
    with server.client(decode_responses=True) as client:
        letters = [fields for _, fields in client.xrange("dead")]
        assert client.xpending("{o}s", "g")["pending"] == 0
    assert sorted(one["n"] for one in letters) == ["11", "15", "19", "3", "7", "none"]
    assert {(one["dl.deliveries"], one["dl.stream"]) for one in letters} == {("3", "{o}s")}
    assert all(one["dl.first-failed"] < one["dl.last-failed"] for one in letters)
    assert progress is not None


@pytest.mark.parametrize("stream", ["orders", "a{b}c"])
def test_waiting_dead_letters_go_to_the_streams_that_the_source_reads(
    spark: SparkSession, server: Server, tmp_path: Path, stream: str
) -> None:
    rows = spark.createDataFrame(
        [(stream, "1-1", 1, {b"n": b"1"}), (stream, "1-2", 3, {b"n": b"2"})],
        "_stream STRING, _id STRING, _attempt INT, _fields MAP<BINARY, BINARY>",
    ).withColumn("_first_failed", F.lit(None).cast("timestamp"))
    letters = route_dead_letters(rows, "true", "x", group="b:g", retry_delay=DELAYS).letters
    assert [row["_to"] for row in letters.select("_to").collect()] == [retry_stream(stream, "b:g", 1), None]


def test_what_a_retry_needs_is_asked_for(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "_stream STRING, _id STRING, _fields MAP<BINARY, BINARY>")
    with pytest.raises(SchemaError, match="retries need column _attempt, _first_failed"):
        route_dead_letters(rows, "true", "x", group="g", retry_delay="1m")
    with pytest.raises(InvalidOptionError, match="retry_delay needs group"):
        route_dead_letters(rows, "true", "x", retry_delay="1m")
    with pytest.raises(InvalidOptionError, match="must be a duration"):
        route_dead_letters(rows, "true", "x", group="g", retry_delay="soon")


CONFIG = """
url = "{url}"
source = {{streams = "orders", group = "etl", startingOffsets = "earliest", retryDelay = "1ms"}}
columns = {{ n = "INT" }}
dead_letters.stream = "orders:dead"
job = {{checkpoint = "{folder}/checkpoint"}}

[[rule]]
reason = "odd"
when = "n % 2 = 1 AND _attempt < 2"

[table]
format = "json"
path = "{folder}/all"
"""


def run_etl(server: Server, folder: Path, spark: SparkSession, more: str = "") -> dict[str, Any]:
    config = tomllib.loads(CONFIG.format(url=server.url, folder=folder) + more)
    job = Job("etl", config, Console(file=io.StringIO()))
    etl.PROGRAM.body(job)
    return job.summary


def test_the_etl_job_tries_again_what_its_rules_refuse(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    append(spark.range(4).selectExpr("CAST(id AS STRING) AS n"), server, "orders")
    with server.client() as client:
        client.xadd("orders", {"n": "none"})
    runs = [run_etl(server, tmp_path, spark) for _ in range(2)]
    counts = [(run["entries"], run["dead"], run["tried_again"]) for run in runs]
    if HAS_READ_LIMITS:
        assert counts == [(5, 0, 3), (3, 1, 0)]
    else:  # the first run starts its query again until nothing is left: by then the retries are due
        assert counts == [(8, 1, 3), (0, 0, 0)]
    assert sorted(row["n"] for row in spark.read.json(str(tmp_path / "all")).collect()) == [0, 1, 2, 3]
    with server.client(decode_responses=True) as client:
        [(_, letter)] = client.xrange("orders:dead")
    assert (letter["n"], letter["dl.deliveries"], letter["dl.reason"]) == ("none", "2", "decode: n does not fit INT")


def test_dead_letters_that_are_trimmed_cannot_wait(server: Server, tmp_path: Path) -> None:
    text = CONFIG.format(url=server.url, folder=tmp_path)
    text = text.replace('dead_letters.stream = "orders:dead"', 'dead_letters = {stream = "orders:dead", maxlen = 7}')
    with pytest.raises(ConfigError, match="dead_letters.maxlen would also trim rows that wait for a retry"):
        etl.PROGRAM.body(Job("etl", tomllib.loads(text), Console(file=io.StringIO())))
