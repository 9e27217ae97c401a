"""encode in Spark: each format returns the rows of decode, also without Arrow functions, and errors have names."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_streams
from spark_streams.connector.errors import InvalidOptionError, RegistryError, RStreamError, SchemaError
from tests.connector.schemas.avro_values import FIRST, record
from tests.connector.schemas.registry_server import RegistryServer
from tests.connector.schemas.test_avro import DECIMAL, of_type
from tests.connector.schemas.test_protobuf import descriptors, file_of_order

pytestmark = pytest.mark.spark

AVRO = record(
    {"name": "n", "type": "long"}, {"name": "amount", "type": DECIMAL}, {"name": "raw", "type": "bytes"},
    {"name": "at", "type": of_type("long", "timestamp-micros")}, {"name": "day", "type": of_type("int", "date")},
    {"name": "l", "type": of_type("long", "local-timestamp-micros")}, {"name": "f", "type": "float"},
    {"name": "m", "type": {"type": "map", "values": "int"}},
    {"name": "a", "type": {"type": "array", "items": {**FIRST, "name": "Line"}}},
    {"name": "maybe", "type": ["null", "string"]},
)  # fmt: skip
ROWS = """
    SELECT id AS n, CAST(id AS DECIMAL(6, 2)) AS amount, X'00FF' AS raw, TIMESTAMP'2026-10-25 00:30:00.123456' AS at,
      DATE'2026-10-25' AS day, TIMESTAMP_NTZ'2026-10-25 02:30:00' AS l, CAST(0.1 AS FLOAT) AS f, map('k', 1) AS m,
      array(named_struct('customer', 'ann', 'amount', 7)) AS a, IF(id % 2 = 0, NULL, 'ü') AS maybe
    FROM range(4)
"""


def struct_of(rows: DataFrame) -> DataFrame:
    return rows.select(F.struct(*rows.columns).alias("order"), F.lit("kept").alias("x.y"))


@pytest.mark.parametrize("has_arrow_functions", [True, False])
def test_avro_rows_return(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, has_arrow_functions: bool) -> None:
    """Spark 4.0 calls a function for each value, with local times: those of an hour that occurs twice, too."""
    if not has_arrow_functions:
        monkeypatch.delattr(F, "arrow_udf", raising=False)
    rows = struct_of(spark.sql(ROWS))
    made = spark_streams.encode(rows, "order", into="payload", schema=json.dumps(AVRO))
    assert made.schema.simpleString().endswith("x.y:string,payload:binary>")
    back = spark_streams.decode(made, "payload", schema=json.dumps(AVRO)).select("order", "payload")
    pairs = back.selectExpr("string(order) AS a", "string(payload) AS b", "order.n").collect()
    assert len(pairs) == 4
    assert all(pair["a"] == pair["b"] for pair in pairs)


def test_protobuf_and_json_rows_return(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "order.desc").write_bytes(descriptors())
    names = "i64 BIGINT, s STRING, at TIMESTAMP, lines ARRAY<STRUCT<sku: STRING>>, counts MAP<STRING, INT>, note STRING"
    rows = struct_of(spark.sql(
        "SELECT id AS i64, 's' AS s, TIMESTAMP'2026-10-25 00:30:00.123456' AS at, array(named_struct('sku', 'a')) AS "
        "lines, map('k', 1) AS counts, CAST(NULL AS STRING) AS note FROM range(3)"
    ))  # fmt: skip
    for options in (
        {"format": "protobuf", "schema": tmp_path / "order.desc", "message": "shop.Order"},
        {"format": "json", "schema": "{}"},
    ):
        made = spark_streams.encode(rows, "order", into="payload", **options)  # type: ignore[arg-type]
        back = spark_streams.decode(made, "payload", into=names, **options)  # type: ignore[arg-type]
        assert back.where("string(order) = string(payload)").count() == 3


def test_a_registry_is_asked_once_and_the_values_have_its_ids(spark: SparkSession, registry: RegistryServer) -> None:
    """By the driver: tasks have the schema."""
    registry.add(7, FIRST)
    registry.answers["/subjects/orders-value/versions/latest"] = {"schema": json.dumps(FIRST), "id": 7}
    proto = b64encode(file_of_order().SerializeToString()).decode()
    registry.add(9, proto, "PROTOBUF")
    registry.answers["/subjects/p/versions/2"] = {"schema": proto, "schemaType": "PROTOBUF", "id": 9}
    rows = struct_of(spark.sql("SELECT 'ann' AS customer, INT(id) AS amount FROM range(0, 6, 1, 3)"))
    for _ in range(2):
        made = spark_streams.encode(rows, "order", into="p", registry=registry.url, subject="orders-value")
        back = spark_streams.decode(made, "p", registry=registry.url, schema=json.dumps(FIRST))
        assert back.where("order = p").count() == 6
        assert {bytes(row["p"][:5]) for row in made.select("p").collect()} == {b"\0\0\0\0\7"}
    assert registry.requests["/subjects/orders-value/versions/latest"] == 1
    rows = struct_of(spark.sql("SELECT 'a' AS sku"))
    made = spark_streams.encode(
        rows, "order", format="protobuf", registry=registry.url, subject="p", version=2, message="shop.Order.Line"
    )
    back = spark_streams.decode(made, "order", format="protobuf", registry=registry.url, into="sku STRING")
    assert back.selectExpr("order.sku").collect() == [("a",)]
    with pytest.raises(
        RegistryError, match=r"subject 'none' has no schema \(version latest\) in the registry .* Register one"
    ):
        spark_streams.encode(rows, "order", registry=registry.url, subject="none")
    with pytest.raises(SchemaError, match="subject 'p' is in PROTOBUF: set format='protobuf'"):
        spark_streams.encode(rows, "order", registry=registry.url, subject="p", version="2")


def test_a_row_that_does_not_fit_has_a_reason_or_stops_the_query(spark: SparkSession) -> None:
    rows = struct_of(spark.sql("SELECT 'ann' AS customer, id * 2147483647 AS amount FROM range(3)"))
    rows = rows.union(rows.limit(1).selectExpr("CAST(NULL AS STRUCT<customer: STRING, amount: BIGINT>)", "'null'"))
    found = spark_streams.encode(rows, "order", into="p", schema=json.dumps(FIRST), schema_id=1, reason="why")
    assert [tuple(row) for row in found.selectExpr("p IS NULL", "why").collect()] == [
        (False, None), (False, None), (True, "bad-value: amount"), (True, None),
    ]  # fmt: skip
    with pytest.raises(Exception, match=r"\[RSTREAM_ENCODE\] a value of column 'order' does not fit .* amount; cast"):
        spark_streams.encode(rows, "order", schema=json.dumps(FIRST)).collect()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, InvalidOptionError, "needs either registry and subject, or schema"),
        ({"registry": "http://h", "subject": "s", "schema": "{}"}, InvalidOptionError, "needs either registry"),
        ({"registry": "http://h"}, InvalidOptionError, "subject and version name a schema of registry"),
        ({"schema": "{}", "version": 1}, InvalidOptionError, "subject and version name a schema of registry"),
        ({"registry": "http://h", "subject": "s", "version": "x"}, InvalidOptionError, "must be a number, or 'latest'"),
        ({"registry": "http://h", "subject": "s", "schema_id": 1}, InvalidOptionError, "schema_id is the number of"),
        ({"schema": "{}", "schema_id": -1}, InvalidOptionError, "schema_id is the number of"),
        ({"schema": "{}", "format": "protobuf"}, InvalidOptionError, "message names the Protobuf message"),
        ({"schema": "{}", "message": "x"}, InvalidOptionError, "message names the Protobuf message"),
        ({"schema": "{}", "login": "a:b"}, InvalidOptionError, "login is for a registry"),
        ({"schema": "{}", "format": "xml"}, InvalidOptionError, "format='xml' must be one of 'avro'"),
        ({"schema": "{}"}, SchemaError, "schema is not valid avro"),
        ({"schema": "none.avsc"}, SchemaError, "'none.avsc' cannot be read: No such file"),
        ({"schema": json.dumps(FIRST)}, SchemaError, "has 'n', and the schema has no such field: leave it out"),
        ({"schema": "{}", "column": "n"}, SchemaError, "needs column 'n' as a STRUCT"),
        ({"schema": "{}", "into": "N"}, SchemaError, "the result of encode would have column 'n' twice"),
        ({"schema": "{}", "format": "json"}, SchemaError, "b has type binary, which JSON does not have"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named_on_the_driver(
    spark: SparkSession, arguments: dict[str, Any], error: type[RStreamError], text: str
) -> None:
    rows = spark.sql("SELECT named_struct('n', 1, 'b', X'00') AS order, 1 AS n")
    with pytest.raises(error, match=text):
        spark_streams.encode(rows, **({"column": "order"} | arguments))
