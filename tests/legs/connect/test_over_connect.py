"""What works over Spark Connect as it does elsewhere: tables, SQL, streams, dead letters, run and watch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.connector.errors import DecodeError
from tests.connector.spark.streams import append, read_stream
from tools.servers.server import Server

pytestmark = pytest.mark.spark


def test_tables(spark: SparkSession, server: Server) -> None:
    """Written, read, inferred, as a view; and what is wrong is said."""
    spark_streams.register(spark)
    append(spark.range(100), server, "s")
    reader = spark.read.format("rstream").options(url=server.url, streams="s")
    assert reader.schema("id INT").load().where("id >= 40").count() == 60
    assert spark.read.format("rstream").options(url=server.url, streams="s", inferSchema=True).load().dtypes == [
        ("id", "bigint")
    ]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING rstream OPTIONS (url '{server.url}', streams 's')")
    assert [row[0] for row in spark.sql("SELECT count(*) FROM v").collect()] == [100]
    with pytest.raises(PySparkException, match="RSTREAM_UNKNOWN_OPTION.*no option 'grup'; did you mean 'group'"):
        spark.read.format("rstream").schema("id INT").options(url=server.url, grup="s").load().count()
    with pytest.raises(
        PySparkException, match=r"RSTREAM_INVALID_OPTION.*pass the options that spark_streams.transaction\('x'"
    ):
        append(spark.range(3), server, "out", transaction="x")


# PySpark's own thread for listeners warns if the server, which ends with the last test, closes its connection first.
@pytest.mark.filterwarnings("ignore:StreamingQueryListenerBus Handler thread received exception")
def test_queries_run_and_are_watched(
    spark: SparkSession, engine_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query a server: the dead letters of its own rule. The third one ends with an error."""
    both = {"engine": engine_server, "redis": redis_server}
    lineage = tmp_path / "lineage"
    with spark_streams.watch(spark, redis_server.url, log=tmp_path / "log", metrics_port=None, lineage=str(lineage)):
        queries = {}
        for name, server in both.items():
            with server.client() as client:
                client.flushall()
                for n in [*range(99), "x"]:
                    client.xadd("s", {"n": n})
            rows = read_stream(
                spark, server, "n INT, _stream STRING, _id STRING, _fields MAP<BINARY, BINARY>", streams="s"
            )
            letters = spark_streams.route_dead_letters(rows, "n % 10 = 1", "one", stage="mine", group="g").letters
            to = {"url": server.url, "stream": "out", "checkpointLocation": str(tmp_path / name)}
            writer = letters.writeStream.format("rstream").options(**to).queryName(name).trigger(availableNow=True)
            queries[name] = writer.start()
        for name, query in queries.items():
            assert spark_streams.run(query) is query
            with both[name].client(decode_responses=True) as client:
                assert client.xlen("out") == 10
                assert client.xpending("s", "g")["pending"] == 0
                (letter,) = [fields for _, fields in client.xrange("out") if fields["n"] == "41"]
            assert (letter["dl.query"], letter["dl.batch"], letter["dl.reason"]) == (query.id, "0", "one")
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        failing = read_stream(spark, redis_server, "n INT", streams="s", group="failing", mode="FAILFAST")
        with pytest.raises(DecodeError, match="field 'n' is b'x'"):
            spark_streams.run(failing.writeStream.format("noop").queryName("failing"))
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    told = {(line["event"], line["query"]) for line in lines}
    assert told >= {(event, name) for event in ("started", "progress", "terminated") for name in both}
    (last,) = [line for line in lines if line["query"] == "failing" and line["event"] == "terminated"]
    assert last["error"].endswith("DecodeError")
    progress = next(line for line in lines if line["event"] == "progress" and line["query"] == "redis")
    assert (progress["rows"], progress["groups"][0]["entries"]) == (100, 100)
    events = [json.loads(line) for line in lineage.read_text().splitlines()]
    of_redis = [event for event in events if event["job"]["name"] == "redis"]
    assert [event["eventType"] for event in of_redis] == ["START", "RUNNING", "COMPLETE"]
    assert [[one["name"] for one in event["inputs"] + event["outputs"]] for event in of_redis] == [["s"]] * 3
