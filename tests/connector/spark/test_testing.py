"""The examples of docs/guide/testing.md, and what spark_streams.testing says when an assertion fails."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from spark_streams.engine import LocalEngine
from spark_streams.testing import assert_stream, run_batches, run_until_drained
from tests.connector.spark.streams import read_stream
from tools.machine_time import machine_seconds
from tools.servers.server import Server

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "testing.md"
INCIDENT = Path(__file__).with_name("incident.jsonl")  # rstream export --with-groups; version 1
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def examples() -> dict[str, Callable[..., None]]:
    """The tests of the page, which share one module, and its program without pytest."""
    module: dict[str, Any] = {}
    for block in BLOCKS[:-1]:
        exec(compile(block, str(PAGE), "exec"), module)
    return {name: value for name, value in module.items() if name.startswith("test_")}


def test_the_page_has_eight_tests() -> None:
    assert len(examples()) == 8


@pytest.mark.parametrize("name", examples())
def test_an_example_passes(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_READ_LIMITS and name == "test_entries_of_the_dead_consumer_are_taken_over":
        pytest.skip("before Spark 4.2 the query starts again after each batch, which the sink `memory` cannot")
    monkeypatch.chdir(INCIDENT.parent)
    example = examples()[name]
    example(**{fixture: request.getfixturevalue(fixture) for fixture in inspect.signature(example).parameters})


def test_the_program_without_pytest_runs() -> None:
    exec(compile(BLOCKS[-1], str(PAGE), "exec"), {})


def test_a_retry_of_an_hour_takes_less_than_a_second(
    spark: SparkSession, rstream_engine: LocalEngine, rstream_client: redis.Redis, tmp_path: Path
) -> None:
    rstream_client.xadd("s", {"n": "none"})
    retried = {"mode": "DEADLETTER", "deadLetterStream": "dead", "retryDelay": "1h"}
    frame = read_stream(spark, Server("engine", rstream_engine.url), "n INT", streams="s", **retried)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        run_until_drained(query)
        rstream_engine.advance("59m")
        assert_stream(rstream_client, "dead").is_empty()
        began = machine_seconds()
        rstream_engine.advance("1m")
        while not rstream_client.xlen("dead"):
            assert machine_seconds() - began < 30
            time.sleep(0.01)
        print(f"{time.monotonic() - began:.2f} s")
    finally:
        query.stop()


@pytest.mark.parametrize("kind", ["released", "new stream"])
def test_a_running_idle_query_is_drained(
    kind: str, spark: SparkSession, rstream_engine: LocalEngine, rstream_client: redis.Redis, tmp_path: Path
) -> None:
    """Also of what does not end its blocking read: released entries, and a new stream of the pattern."""
    rstream_client.xadd("s1", {"n": 1})
    frame = read_stream(spark, Server("engine", rstream_engine.url), "n INT", group="g", streamsPattern="s*")
    writer = frame.writeStream.format("memory").queryName("drained").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    try:
        run_until_drained(query)
        time.sleep(3)
        if kind == "released":
            with rstream_client.pipeline() as transaction:
                transaction.xadd("s1", {"n": 2}).xreadgroup("g", "other", {"s1": ">"})
                entry, _ = transaction.execute()
            run_until_drained(query)
            assert rstream_client.execute_command("XNACK", "s1", "g", "FAIL", "IDS", 1, entry) == 1
        else:
            rstream_client.xadd("s2", {"n": 2})
        run_until_drained(query)
        assert sorted(row.n for row in spark.sql("SELECT n FROM drained").collect()) == [1, 2]
    finally:
        query.stop()


def test_what_a_stream_has(rstream_engine: LocalEngine, rstream_url: str, rstream_client: redis.Redis) -> None:
    for server in (rstream_engine, rstream_url, rstream_client):
        assert_stream(server, "s").is_empty().has_length(0)
    rstream_client.xadd("s", {"a": 1, "b": "x"}, id="1-1")
    rstream_client.execute_command("XADD", "s", "2-1", "a", "1", "a", b"\xff")
    for server in (rstream_engine, rstream_url, rstream_client):
        stream = assert_stream(server, "s").has_ids(["1-1", "2-1"])
        stream.has([{"b": "x", "a": 1}, [("a", 1), ("a", "\\xff")]])
        stream.has([[("a", 1), ("a", b"\xff")], {"b": "x", "a": 1}], in_any_order=True)
    assert rstream_client.xrange("s", count=1) == [("1-1", {"a": "1", "b": "x"})]


def test_a_difference_is_shown(rstream_client: redis.Redis) -> None:
    rstream_client.xadd("s", {"customer": "ann"}, id="1-1")
    rstream_client.xadd("s", {"customer": "eve"}, id="2-1")
    stream = assert_stream(rstream_client, "s")
    with pytest.raises(AssertionError) as raised:
        stream.has([{"customer": "ann"}, {"customer": "bob"}])
    assert str(raised.value).splitlines() == [
        "stream 's': 2 entries, 2 expected",
        "--- expected",
        "+++ stream s",
        "@@ -1,2 +1,2 @@",
        " {'customer': 'ann'}",
        "-{'customer': 'bob'}",
        "+{'customer': 'eve'}",
    ]
    with pytest.raises(AssertionError, match="stream 's': 2 entries, 3 expected"):
        stream.has_length(3)
    with pytest.raises(AssertionError, match=r"stream 's': IDs \['1-1', '2-1'\], \['1-1'\] expected"):
        stream.has_ids(["1-1"])
    with pytest.raises(AssertionError, match="stream 's': 2 entries, 500 expected"):
        stream.has([{"n": n} for n in range(500)])


@pytest.mark.parametrize(("age", "taken"), [("5m", [1, 2, 3]), ("15m", [])])
def test_an_incident_is_repeated_without_redis(
    age: str, taken: list[int], spark: SparkSession, rstream_engine: LocalEngine, tmp_path: Path
) -> None:
    """Three entries are pending for a dead consumer for ten minutes, two for another one for a minute."""
    rstream_engine.load(INCIDENT)
    options = {"streams": "orders", "group": "etl", "claimIdle": age}
    frame = read_stream(spark, Server("engine", rstream_engine.url), "n INT", **options)
    writer = frame.writeStream.format("memory").queryName(f"incident{age}")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        run_until_drained(query)
    finally:
        query.stop()
    assert sorted(row.n for row in spark.table(f"incident{age}").collect()) == [*taken, 6]
    with redis.Redis.from_url(rstream_engine.url) as client:
        pending = client.xpending("orders", "etl")
        left = {one["name"]: one["pending"] for one in pending["consumers"]}
    assert left.get(b"bob") == 2
    assert left.get(b"ann", 0) == 3 - len(taken)


def test_batches_have_the_given_sizes_and_a_killed_one_is_repeated(
    spark: SparkSession, rstream_engine: LocalEngine, rstream_client: redis.Redis, tmp_path: Path
) -> None:
    with rstream_client.pipeline() as pipe:
        for n in range(210):
            pipe.xadd("s", {"n": n})
        pipe.execute()
    batches: list[tuple[int, list[int]]] = []

    def write(frame: DataFrame) -> DataStreamWriter:
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path))
        return writer.foreachBatch(lambda rows, number: batches.append((number, sorted(r.n for r in rows.collect()))))

    reader = spark.readStream.format("rstream").schema("n INT")
    reader = reader.options(url=rstream_engine.url, streams="s", group="g", startingOffsets="earliest")
    run_batches(reader, write, [100, 50, "kill", 50])
    ranges = [range(100), range(100, 150), range(100, 150), range(150, 200)]
    assert batches == [(number, list(part)) for number, part in zip([0, 1, 1, 2], ranges, strict=True)]
    with pytest.raises(AssertionError, match=r"batch 0 of \[11\] has 10 entries: the streams have no more"):
        run_batches(reader, write, [11])
    with pytest.raises(AssertionError, match=r"batch 0 of \[5, 'kill'\] has 0 entries"):
        run_batches(reader, write, [5, "kill"])
    for wrong in ([], ["kill"], [0], [1, "stop"], [True]):
        with pytest.raises(ValueError, match="sizes are numbers of entries from 1"):
            run_batches(reader, write, wrong)
