"""Rules: which batches of the etl job are kept in memory while they are written, and which are read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from spark_streams import register
from spark_streams.jobs.job import Job
from spark_streams.jobs.output.one_task import write_in_one_task
from spark_streams.jobs.parts.outputs import Outputs
from spark_streams.jobs.parts.rules import Counts, Judged, Rules
from spark_streams.jobs.programs import etl
from tools.servers.server import Server

pytestmark = pytest.mark.spark

BAD = (11, 13)  # both in the third batch of five
BATCHES = [True, False, False, True, False]  # whether each is kept


@pytest.fixture
def config(server: Server, tmp_path: Path) -> dict[str, Any]:
    with server.client() as client:
        for n in range(25):
            client.xadd("orders", {"n": n if n not in BAD else "none"})
    source = {"streams": "orders", "group": "etl", "startingOffsets": "earliest", "maxEntriesPerTrigger": 5}
    return {
        "url": server.url,
        "source": source,
        "columns": {"n": "INT"},
        "table": {"format": "parquet", "path": f"{tmp_path}/table"},
        "dead_letters": {"stream": "dead"},
        "job": {"checkpoint": f"{tmp_path}/checkpoint"},
    }


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each batch, whether it is kept."""
    seen, write = list[bool](), Outputs.write

    def writing(self: Outputs, judged: Judged, number: int) -> None:
        seen.append(judged.is_kept)
        write(self, judged, number)

    monkeypatch.setattr(Outputs, "write", writing)
    return seen


def run(spark: SparkSession, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    register(spark)
    monkeypatch.setattr(Job, "session", lambda _job: spark)
    job = Job("etl", config, Console(quiet=True))
    etl.PROGRAM.body(job)
    return job.summary


def numbers(spark: SparkSession, table: dict[str, Any]) -> list[int]:
    rows = spark.read.parquet(table["path"]) if "path" in table else spark.table(table["name"])
    return sorted(row.n for row in rows.collect())


@pytest.mark.parametrize("place", ["path", "name"])
def test_a_batch_after_one_of_good_rows_is_read_once_and_one_with_bad_rows_once_more(
    place: str,
    spark: SparkSession,
    server: Server,
    config: dict[str, Any],
    kept: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if place == "name":
        spark.sql("DROP TABLE IF EXISTS read_once")
        config["table"] = {"format": "parquet", "name": "read_once"}
    summary = run(spark, config, monkeypatch)
    assert kept == BATCHES
    assert (summary["entries"], summary["parquet"], summary["dead"]) == (25, 23, 2)
    assert numbers(spark, config["table"]) == [n for n in range(25) if n not in BAD]
    with server.client(decode_responses=True) as client:
        assert client.xlen("dead") == 2
        assert client.xpending("orders", "etl")["pending"] == 0
    if place == "name":
        spark.sql("DROP TABLE read_once")


def test_each_batch_is_kept_if_a_rule_is_one_of_chance(
    spark: SparkSession, config: dict[str, Any], kept: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a row that is good in one reading and bad in the other nothing would be written."""
    config["rule"] = [{"reason": "unlucky", "when": "rand() > 2"}]
    assert run(spark, config, monkeypatch)["parquet"] == 23
    assert kept == [True] * 5


def test_each_batch_is_kept_if_there_is_a_second_output(
    spark: SparkSession, server: Server, config: dict[str, Any], kept: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    config["output"] = [{"name": "stream", "sink": {"stream": "good"}}]
    assert run(spark, config, monkeypatch)["parquet"] == 23
    assert kept == [True] * 5
    with server.client() as client:
        assert client.xlen("good") == 23


def test_a_second_reading_with_other_rows_ends_the_job_and_the_next_run_reads_the_batch_once(
    spark: SparkSession, server: Server, config: dict[str, Any], kept: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    config["source"]["failOnDataLoss"] = "false"
    count = Rules._count

    def after_a_deletion(self: Rules, rows: DataFrame) -> Counts:
        if kept == BATCHES[:3]:
            with server.client() as client:
                client.xdel("orders", client.xrange("orders")[BAD[0]][0])
        return count(self, rows)

    monkeypatch.setattr(Rules, "_count", after_a_deletion)
    with pytest.raises(
        StreamingQueryException, match=r"read twice, with different rows: first 3 good and 2 bad ones, then 3 and 1\."
    ):
        run(spark, config, monkeypatch)
    with server.client() as client:
        assert client.xlen("dead") == 0
        assert client.xpending("orders", "etl")["pending"] >= 4
    summary = run(spark, config, monkeypatch)
    assert kept == [*BATCHES[:3], True, True, False]
    assert (summary["entries"], summary["dead"]) == (14, 1)
    assert numbers(spark, config["table"]) == [n for n in range(25) if n not in BAD]


def test_a_batch_that_the_table_holds_already_is_counted_all_the_same(spark: SparkSession) -> None:
    observation = Observation()
    rows = spark.range(100_000, numPartitions=2).observe(observation, F.count(F.lit(1)).alias("rows"))
    write_in_one_task(rows, lambda _pages: iter([pa.record_batch({"written": [False]})]))
    assert observation.get == {"rows": 100_000}
