"""Nexmark's queries over streams have the rows that the same SQL has over files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from examples.nexmark.events import AUCTION, BID, PERSON, events
from examples.nexmark.nexmark import columns, differences, main, produce, result, rows_of, run, streams, tables
from examples.nexmark.queries import QUERIES
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tools.servers.server import Server

EVENTS = 30_000


def test_events_have_the_published_proportions() -> None:
    made = list(events(5_000))
    assert Counter(event.kind for event in made[:-3]) == {PERSON: 100, AUCTION: 300, BID: 4_600}
    assert [event.kind for event in made[-3:]] == [PERSON, AUCTION, BID]
    assert made == list(events(5_000))


def test_differences_count_equal_rows() -> None:
    missing, more = differences([1, 1, 2], [1, 2, 3])  # type: ignore[list-item]
    assert (missing.total(), more.total()) == (1, 1)


def test_a_stream_has_the_columns_that_the_query_names() -> None:
    assert columns(BID, QUERIES["q2"]) == "auction BIGINT, price BIGINT, dateTime TIMESTAMP"
    assert columns(PERSON, QUERIES["q8"]) == "id BIGINT, name STRING, dateTime TIMESTAMP"


@pytest.mark.spark
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="before Spark 4.2 what the last batch closes comes with a later run")
@pytest.mark.parametrize("name", ["q4", "q5", "q8"])
def test_a_stream_has_the_rows_of_the_batch(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path, name: str
) -> None:
    query = QUERIES[name]
    produce(client, "n", tmp_path / "events", EVENTS)
    run(spark, query, streams(spark, server.url, "n", query, "g"), tmp_path)
    found = result(spark, query, spark.read.parquet(str(tmp_path / "rows")))
    assert len(found) >= 5
    missing, more = differences(found, result(spark, query, rows_of(spark, query, tables(spark, tmp_path / "events"))))
    assert (missing, more) == (Counter(), Counter())


@pytest.mark.long
@pytest.mark.spark
def test_the_program_says_that_all_queries_agree(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", server.url, "--events", str(EVENTS)]) == 0
    assert capfd.readouterr().out.count("the same as the batch") == len(QUERIES)
