"""decode in Spark: streams and frames, columns beside it, dead letters, and no password in a plan."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_streams
from spark_streams.connector.errors import InvalidOptionError, RStreamError, SchemaError
from tests.connector.schemas.avro_values import FIRST, READER, VERSIONS, encoded
from tests.connector.schemas.registry_server import RegistryServer
from tests.connector.schemas.test_avro import DECIMAL, MOMENT, of_type, record
from tests.connector.schemas.test_schema_registry import VALUES
from tests.connector.spark.streams import read_stream, run_to_the_end
from tests.connector.spark.test_routing import dead_letters_in
from tools.servers.server import Server

pytestmark = pytest.mark.spark

OURS = "payload BINARY, n INT, _stream STRING, _id STRING, _deliveries INT, _fields MAP<BINARY, BINARY>"


def test_a_stream_with_three_versions_an_unknown_one_and_a_truncated_value(
    spark: SparkSession, server: Server, registry: RegistryServer, tmp_path: Path
) -> None:
    """Good rows go to a table, dead letters keep their entries byte for byte, each process asks once for an ID."""
    for schema_id, schema in VERSIONS.items():
        registry.add(schema_id, schema)
    registry.login = "reader:s3cret"
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    payloads = [encoded(VERSIONS[n], VALUES[n], n) for n in (1, 2, 3)]
    payloads += [encoded(FIRST, VALUES[1], 9), payloads[0][:-1], b"no framing"]
    with server.client() as client:
        entries = [{b"payload": one, b"n": b"%d" % n, b"\xff": b"\0\r\n"} for n, one in enumerate(payloads)]
        ids = [client.xadd("s", one).decode() for one in entries]  # type: ignore[arg-type]
        client.xadd("s", {"n": "6"})  # it has no payload
    stream = read_stream(spark, server, OURS, streams="s")
    decoded = spark_streams.decode(
        stream, "payload", registry=registry.url, schema=json.dumps(READER), login=("reader", password), column="order",
        reason="why",
    )  # fmt: skip
    assert decoded.columns == [*stream.columns, "order", "why"]

    def write(rows: DataFrame, number: int) -> None:
        good, letters = spark_streams.route_dead_letters(rows, "why IS NOT NULL", F.col("why"))
        good.select("n", "order.*").write.mode("append").parquet(str(tmp_path / "table"))
        letters.write.format("rstream").mode("append").options(url=server.url, stream="dead").save()

    query = decoded.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_the_end(query.trigger(availableNow=True).start)
    rows = {row["n"]: row[1:] for row in spark.read.parquet(str(tmp_path / "table")).collect()}
    assert rows == {0: ("ann", 7, "USD"), 1: ("bob", 2**40, "USD"), 2: ("cyd", 9, "CHF"), 6: (None, None, None)}
    letters = dead_letters_in(server)
    assert [letter["id"] for _, letter in letters] == ids[3:]
    assert [fields for fields, _ in letters] == entries[3:]
    assert [letter["reason"] for _, letter in letters] == ["unknown-schema", "bad-value", "bad-framing"]
    text = decoded._jdf.queryExecution().toString()  # type: ignore[operator]
    assert "s3cret" not in text
    assert "password" not in text


def test_a_batch_keeps_the_other_columns_and_each_type(spark: SparkSession) -> None:
    schema = record(
        {"name": "d", "type": DECIMAL}, {"name": "t", "type": of_type("long", "timestamp-micros")},
        {"name": "l", "type": of_type("long", "local-timestamp-micros")}, {"name": "b", "type": "bytes"},
        {"name": "day", "type": of_type("int", "date")}, {"name": "m", "type": {"type": "map", "values": "int"}},
        {"name": "a", "type": {"type": "array", "items": {**FIRST, "name": "Line"}}}, {"name": "f", "type": "float"},
    )  # fmt: skip
    value = {"d": Decimal("1.25"), "t": MOMENT, "l": 1, "b": b"\0", "day": 0,
             "m": {"k": 1}, "a": [VALUES[1]], "f": 0.5}  # fmt: skip
    frame = spark.createDataFrame(
        [(1, bytearray(encoded(schema, value)), "x"), (2, None, "y")], "`n.m` INT, p BINARY, z STRING"
    )
    found = spark_streams.decode(frame, "p", schema=json.dumps(schema))
    assert found.columns == ["n.m", "p", "z"]
    found = found.select("`n.m`", "z", "p", F.expr("string(p.t)"), F.expr("string(p.l)"), F.expr("string(p.day)"))
    first, second = found.orderBy("z").collect()
    assert (second["n.m"], second["p"]) == (2, None)
    assert first[3:] == ("2026-01-31 23:59:59.123456", "1970-01-01 00:00:00.000001", "1970-01-01")
    assert (first["p"]["d"], bytes(first["p"]["b"]), first["p"]["f"]) == (value["d"], b"\0", 0.5)
    assert (first["p"]["m"], first["p"]["a"][0].asDict()) == ({"k": 1}, VALUES[1])


def test_each_value_is_decoded_once_in_a_query(spark: SparkSession) -> None:
    """A filter on the reason, and two columns of the result."""
    rows = spark.createDataFrame([(encoded(FIRST, VALUES[1]),), (b"\xff",)], "p BINARY")
    found = spark_streams.decode(rows, "p", schema=json.dumps(FIRST), reason="why").where("why IS NULL")
    plan = found.select("p.customer", "p.amount", "why")._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert plan.count("ArrowEvalPython") + plan.count("BatchEvalPython") == 1
    assert found.select("p.customer", "p.amount").collect() == [("ann", 7)]


def test_a_wrong_value_without_a_column_for_reasons_and_a_refused_login_stop_the_query_by_name(
    spark: SparkSession, registry: RegistryServer
) -> None:
    registry.add(1, FIRST)
    registry.login = "reader:s3cret"
    rows = spark.createDataFrame([(encoded(FIRST, VALUES[1], 1)[:-1],)], "p BINARY")
    with pytest.raises(Exception, match=r"\[RSTREAM_REGISTRY\].*refuses the login .HTTP 401"):
        spark_streams.decode(rows, "p", registry=registry.url, schema=json.dumps(FIRST)).collect()
    assert registry.requests.total() == 1
    with pytest.raises(Exception, match=r"\[RSTREAM_DECODE\] a value of column 'p' cannot be decoded: bad-value"):
        spark_streams.decode(rows, "p", schema=json.dumps(FIRST), framed=True).collect()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, InvalidOptionError, "needs registry or schema"),
        ({"schema": "{}", "format": "xml"}, InvalidOptionError, "format='xml' must be one of 'avro'"),
        ({"registry": "http://h"}, InvalidOptionError, "needs schema or into"),
        ({"registry": "http://u:s3cret@h", "into": "a INT"}, InvalidOptionError, "registry must be http"),
        ({"registry": "http://h", "into": "a INT", "framed": False}, InvalidOptionError, "framed=False contradicts"),
        ({"registry": "http://h", "into": "a INT", "login": "user"}, InvalidOptionError, "login must be"),
        ({"schema": "none.avsc"}, SchemaError, "'none.avsc' cannot be read: No such file"),
        ({"schema": "{}", "into": "a INT"}, SchemaError, "schema is not valid avro"),
        ({"schema": "{}", "into": "a INT", "login": "a:b"}, InvalidOptionError, "login is for a registry"),
        ({"schema": "{}", "message": "x"}, InvalidOptionError, "message names the Protobuf message"),
        ({"schema": json.dumps(FIRST), "into": "a INTERVAL YEAR"}, SchemaError, "a has type interval year, into which"),
        ({"schema": json.dumps(FIRST), "column": "N"}, SchemaError, "would have column 'n' twice"),
        ({"schema": json.dumps(FIRST), "column": "c", "reason": "C"}, SchemaError, "would have column 'c' twice"),
        ({"schema": json.dumps(record({"name": "u", "type": ["int", "string"]}))}, SchemaError,
         "field u is a union of int, string, which no single type can hold; set into="),
        ({"schema": '{"type": "object"}', "format": "json"}, SchemaError, "has no properties"),
        ({"schema": json.dumps(FIRST), "payload": "n"}, SchemaError, "needs column 'n' as BINARY or STRING"),
        ({"schema": json.dumps(FIRST), "payload": "none"}, SchemaError, "needs column 'none' as BINARY or STRING"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named_on_the_driver(
    spark: SparkSession, arguments: dict[str, Any], error: type[RStreamError], text: str
) -> None:
    rows = spark.sql("SELECT X'00' AS p, 1 AS n")
    with pytest.raises(error, match=text.replace("(", "[(]")) as told:
        spark_streams.decode(rows, **({"payload": "p"} | arguments))
    assert "s3cret" not in str(told.value)
