"""The lineage of a watched query: what it reads and writes, from its start to its end."""

from __future__ import annotations

import json
import logging
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from spark_streams.connector.watch.lineage import lineage as lineage_module
from spark_streams.connector.watch.lineage.datasets import stream_dataset
from spark_streams.connector.watch.listener import Watch
from spark_streams.connector.wire.address import Address
from spark_streams.jobs.programs import archive
from tests.connector.spark.jobs.test_etl import run as run_job
from tests.connector.spark.streams import read_stream, run_to_the_end
from tests.connector.spark.watching import attached
from tests.connector.watch.collector import Collector, Event, check
from tools.servers.server import Server, free_port
from tools.waiting import until

pytestmark = pytest.mark.spark


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture
def watching(spark: SparkSession, collector: Collector) -> Iterator[Callable[..., Watch]]:
    """Attach a listener that sends lineage to the collector, or to another place."""
    yield from attached(spark, log=None, lineage=collector.url)


def filled(server: Server, stream: str = "s") -> None:
    with server.client() as client:
        for n in range(10):
            client.xadd(stream, {"n": n})


@pytest.fixture
def filled_engine(engine_server: Server) -> Server:
    """A bundled engine with stream `s` alone."""
    with engine_server.client() as client:
        client.flushall()
    filled(engine_server)
    return engine_server


def run(frame: DataFrame, folder: Path, name: str, **how: Any) -> None:
    """Run a query to its end. how: format and options, or foreachBatch."""
    writer = frame.writeStream.queryName(name).option("checkpointLocation", str(folder / name))
    if "foreachBatch" in how:
        writer = writer.foreachBatch(how["foreachBatch"])
    else:
        writer = writer.format(how.pop("format", "rstream")).options(**how)
    run_to_the_end(lambda: writer.trigger(availableNow=True).start())


def kinds(events: list[Event]) -> list[str]:
    return [event["eventType"] for event in events]


def by_run(events: list[Event]) -> list[list[Event]]:
    """The events of each run. Before Spark 4.2 a query with availableNow is started several times."""
    runs: dict[str, list[Event]] = {}
    for event in events:
        runs.setdefault(event["run"]["runId"], []).append(event)
    return [*runs.values()]


def names(datasets: list[Event]) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in datasets]


def columns(dataset: Event) -> dict[str, str]:
    return {field["name"]: field["type"] for field in dataset["facets"]["schema"]["fields"]}


def of_server(server: Server, *streams: str) -> list[tuple[str, str]]:
    found = [stream_dataset(Address.parse(server.url), stream) for stream in streams]
    return [(one.namespace, one.name) for one in found]


def test_from_a_stream_into_a_stream(
    spark: SparkSession, server: Server, collector: Collector, watching: Callable[..., Watch], tmp_path: Path
) -> None:
    filled(server)
    watch = watching(server.url)
    frame = read_stream(spark, server, "n INT", streams="s").select((F.col("n") * 2).cast("long").alias("twice"))
    run(frame, tmp_path, "doubling", url=server.url, stream="out")
    watch.close()
    first, *others = by_run(collector.of("doubling"))
    assert kinds(first) == ["START", "RUNNING", "COMPLETE"]
    assert all(kinds(one) == ["START", "COMPLETE"] for one in others)
    for event in first:
        [read] = event["inputs"]
        assert names([read]) == of_server(server, "s")
        assert columns(read) == {"n": "int"}
        facet = read["inputFacets"]["rstream_consumerGroup"]
        assert (facet["group"], facet["consumer"]) == ("g", "spark")
    assert first[0]["outputs"] == []  # Spark has no plan yet
    for event in first[1:]:
        [written] = event["outputs"]
        assert names([written]) == of_server(server, "out")
        assert columns(written) == {"twice": "bigint"}
    assert first[0]["run"]["facets"]["processing_engine"]["version"] == spark.version
    assert [event["eventTime"] for event in first] == sorted(event["eventTime"] for event in first)


def test_a_query_that_fails(
    spark: SparkSession, server: Server, collector: Collector, watching: Callable[..., Watch], tmp_path: Path
) -> None:
    filled(server)
    watch = watching(server.url)

    def fail(_rows: DataFrame, _number: int) -> None:
        raise ZeroDivisionError("nothing is left")

    with pytest.raises(StreamingQueryException):
        run(read_stream(spark, server, "n INT", streams="s"), tmp_path, "failing", foreachBatch=fail)
    watch.close()
    events = collector.of("failing")
    assert kinds(events) == ["START", "FAIL"]
    assert names(events[-1]["inputs"]) == of_server(server, "s")
    message = events[-1]["run"]["facets"]["errorMessage"]["message"]
    assert message.startswith("ZeroDivisionError. The message is in the log of the query")
    assert "nothing is left" not in message
    assert "errorMessage" not in events[0]["run"]["facets"]


def test_what_foreach_batch_writes_belongs_to_the_run(
    spark: SparkSession, server: Server, collector: Collector, watching: Callable[..., Watch], tmp_path: Path
) -> None:
    """Streams in transactions, and files. A write in the program's own session, at the same time, does not."""
    filled(server)
    watch = watching(server.url)

    def write(rows: DataFrame, _number: int) -> None:
        written = rows.write.format("rstream").mode("append").option("url", server.url)
        written.options(stream="good", transaction="good").save()
        rows.where("n > 5").write.mode("append").parquet(str(tmp_path / "large"))
        rows.count()
        spark.range(1).write.mode("append").parquet(str(tmp_path / "apart"))

    run(read_stream(spark, server, "n INT", streams="s"), tmp_path, "batches", foreachBatch=write)
    watch.close()
    first = by_run(collector.of("batches"))[0]
    assert kinds(first) == ["START", "RUNNING", "COMPLETE"]
    outputs = first[-1]["outputs"]
    assert names(outputs) == [*of_server(server, "good"), ("file", str(tmp_path / "large"))]
    assert [columns(one) for one in outputs] == [{"n": "int"}] * 2


def test_streams_of_a_pattern_into_files(
    spark: SparkSession, engine_server: Server, collector: Collector, watching: Callable[..., Watch], tmp_path: Path
) -> None:
    """The streams of a pattern are known after the first micro-batch. A query that reads no stream has no events."""
    with engine_server.client() as client:
        client.flushall()
    filled(engine_server, "a1")
    filled(engine_server, "a2")
    watch = watching(engine_server.url)
    frame = read_stream(spark, engine_server, "n INT", streamsPattern="a*", group="p")
    run(frame, tmp_path, "pattern", format="parquet", path=str(tmp_path / "rows"))
    other = spark.readStream.format("rate").load()
    run(other, tmp_path, "other", format="parquet", path=str(tmp_path / "other-rows"))
    watch.close()
    first = by_run(collector.of("pattern"))[0]
    assert (kinds(first), names(first[0]["inputs"])) == (["START", "RUNNING", "COMPLETE"], [])
    assert sorted(names(first[-1]["inputs"])) == sorted(of_server(engine_server, "a1", "a2"))
    assert names(first[-1]["outputs"]) == [("file", str(tmp_path / "rows"))]
    assert collector.of("other") == []


def test_running_at_most_once_a_minute(
    spark: SparkSession,
    filled_engine: Server,
    collector: Collector,
    watching: Callable[..., Watch],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lineage_module._INTERVAL == 60.0
    monkeypatch.setattr(lineage_module, "_INTERVAL", 3600.0)  # on a busy machine, four batches may take a minute
    watch = watching(filled_engine.url)
    frame = read_stream(spark, filled_engine, "n INT", streams="s", maxEntriesPerTrigger="2")
    writer = frame.writeStream.queryName("many").option("checkpointLocation", str(tmp_path / "c")).format("rstream")
    query = writer.options(url=filled_engine.url, stream="out").start()
    try:
        until(lambda: query.lastProgress and query.lastProgress.batchId >= 3, "there are not four batches", 120)
    finally:
        query.stop()
    watch.close()
    assert kinds(collector.of("many")) == ["START", "RUNNING", "COMPLETE"]


def test_a_collector_that_is_away_neither_stops_nor_slows_a_query(
    spark: SparkSession,
    filled_engine: Server,
    watching: Callable[..., Watch],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = watching(filled_engine.url, lineage=f"http://127.0.0.1:{free_port()}")
    with caplog.at_level(logging.WARNING):
        run(read_stream(spark, filled_engine, "n INT", streams="s"), tmp_path, "q", url=filled_engine.url, stream="out")
        began = time.monotonic()
        watch.close()
    assert time.monotonic() - began < 20
    with filled_engine.client() as client:
        assert client.xlen("out") == 10
    assert [record.message.count("takes no events") for record in caplog.records] == [1, 0]
    assert "were dropped" in caplog.records[1].message


def test_a_closed_watch_leaves_no_listener(
    spark: SparkSession, filled_engine: Server, collector: Collector, watching: Callable[..., Watch], tmp_path: Path
) -> None:
    """And removes its own, not the one of another watch."""
    first, second = watching(filled_engine.url), watching(filled_engine.url)
    manager: JavaObject = spark._jsparkSession.listenerManager()
    assert len(manager.listListeners()) == 2
    first.close()
    assert len(manager.listListeners()) == 1

    def write(rows: DataFrame, _number: int) -> None:
        rows.write.mode("append").parquet(str(tmp_path / "rows"))

    run(read_stream(spark, filled_engine, "n INT", streams="s"), tmp_path, "left", foreachBatch=write)
    second.close()
    assert len(manager.listListeners()) == 0
    last = by_run(collector.of("left"))[0][-1]
    assert (last["eventType"], names(last["outputs"])) == ("COMPLETE", [("file", str(tmp_path / "rows"))])


JOB = """
url = "{url}"
source = {{streams = "s", group = "etl", startingOffsets = "earliest"}}
columns = {{n = "INT"}}
dead_letters.stream = "s:dead"
table = {{path = "{folder}/rows"}}
output = [{{name = "large", where = "n > 5", sink = {{stream = "large"}}}}]
job = {{checkpoint = "{folder}/checkpoint", lineage = "{lineage}"}}
"""


def test_a_job_is_one_run_with_its_tables_and_streams(
    spark: SparkSession,
    filled_engine: Server,
    collector: Collector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All outputs are known from the start, and those of the batch's plan do not come to them."""
    text = JOB.format(url=filled_engine.url, folder=tmp_path, lineage=collector.url)
    run_job(spark, tomllib.loads(text), monkeypatch)
    runs = by_run(collector.of("etl"))
    assert kinds(runs[0]) == ["START", "RUNNING", "COMPLETE"]
    assert len(runs) == (1 if HAS_READ_LIMITS else 2)
    for event in runs[0]:
        assert names(event["inputs"]) == of_server(filled_engine, "s")
        assert names(event["outputs"]) == [
            ("file", str(tmp_path / "rows")),
            *of_server(filled_engine, "large", "s:dead"),
        ]


def test_an_archive_writes_its_table(
    spark: SparkSession,
    filled_engine: Server,
    collector: Collector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = {
        "url": filled_engine.url,
        "source": {"streams": "s", "group": "archive"},
        "table": {"path": f"{tmp_path}/rows"},
        "job": {"checkpoint": f"{tmp_path}/c", "lineage": f"{tmp_path}/events", "name": "keep"},
    }
    run_job(spark, config, monkeypatch, archive)
    lines = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    for line in lines:
        check(line)
        assert line["job"]["name"] == "keep"
        assert names(line["outputs"]) == [("file", str(tmp_path / "rows"))]
    assert kinds(by_run(lines)[0]) == ["START", "RUNNING", "COMPLETE"]
