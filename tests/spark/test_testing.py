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
from pyspark.sql import SparkSession

from spark_streams.engine import LocalEngine
from spark_streams.testing import assert_stream, run_until_drained
from tests.spark.streams import read_stream
from tools.machine_time import machine_seconds
from tools.servers.server import Server

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def examples() -> dict[str, Callable[..., None]]:
    """The tests of the page, which share one module, and its program without pytest."""
    module: dict[str, Any] = {}
    for block in BLOCKS[:-1]:
        exec(compile(block, str(PAGE), "exec"), module)
    return {name: value for name, value in module.items() if name.startswith("test_")}


def test_the_page_has_six_tests() -> None:
    assert len(examples()) == 6


@pytest.mark.parametrize("name", examples())
def test_an_example_passes(name: str, request: pytest.FixtureRequest) -> None:
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
