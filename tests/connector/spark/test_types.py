"""Every type through a stream and back, and what the modes make of values that do not fit, inside Spark."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from tests.connector.spark.streams import append, drain, read_stream
from tools.servers.server import Server

pytestmark = pytest.mark.spark

TYPES = (
    "s STRING, raw BINARY, b BOOLEAN, i1 TINYINT, i2 SMALLINT, i4 INT, i8 BIGINT, f4 FLOAT, f8 DOUBLE, "
    "d DECIMAL(38, 18), day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, list ARRAY<DECIMAL(6, 2)>, "
    "nested STRUCT<x: INT, more: ARRAY<STRUCT<raw: BINARY, at: TIMESTAMP>>>, map MAP<STRING, MAP<INT, DOUBLE>>"
)
UTC = datetime.UTC
FULL = Row(
    s="é\r\n", raw=bytearray(b"\x00\xff\r\n"), b=True, i1=-128, i2=-32768, i4=2**31 - 1, i8=-(2**63),
    f4=0.10000000149011612, f8=float("-inf"), d=Decimal("-12345678901234567890.000000000000000001"),
    day=datetime.date(1582, 10, 15),
    ts=datetime.datetime(2013, 1, 31, 10, 0, 0, 1, UTC), ntz=datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    list=[Decimal("1.50"), None, Decimal("-9999.99")],
    nested=Row(x=None, more=[Row(raw=bytearray(b"\xff"), at=datetime.datetime(1970, 1, 1, tzinfo=UTC)), None]),
    map={"a\"b": {1: 0.1, -2: None}, "": {}},
)  # fmt: skip


def test_every_type_equals_itself_after_a_stream(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    bare = ("the other columns are null", *[None] * (len(FULL) - 1))
    frame = spark.createDataFrame([FULL, bare], TYPES)
    append(frame, server, "types")
    back = drain(read_stream(spark, server, TYPES, streams="types"), tmp_path)
    assert back.dtypes == frame.dtypes
    assert back.orderBy("s").collect() == frame.orderBy("s").collect()


def test_a_decimal_within_json_is_a_string_that_spark_reads_exactly(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    digits = "12345678901234567890.123456789012345678"
    schema = "order STRUCT<amount: DECIMAL(38, 18)>"
    append(spark.createDataFrame([Row(order=Row(amount=Decimal(digits)))], schema), server, "s")
    with server.client() as client:
        [(_, written)] = client.xrange("s")
        client.xadd("s", {"order": f'{{"amount":{digits}}}'})
    text = f'{{"amount":"{digits}"}}'
    assert written == {b"order": text.encode()}
    texts = spark.createDataFrame([(text,)], "text STRING")
    assert texts.selectExpr("from_json(text, 'amount DECIMAL(38, 18)').amount").collect() == [Row(Decimal(digits))]
    back = drain(read_stream(spark, server, schema, streams="s"), tmp_path).collect()
    assert [row.order.amount for row in back] == [Decimal(digits)] * 2


def test_a_value_that_does_not_fit_leaves_its_entry_in_the_corrupt_record(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    with server.client() as client:
        client.xadd("s", {"n": "1", "tags": '["a"]'}, id="1-0")
        client.xadd("s", {"n": "two", "tags": '["b"'}, id="2-0")
    schema = "n INT, tags ARRAY<STRING>, broken STRING, _id STRING"
    stream = read_stream(spark, server, schema, streams="s", columnNameOfCorruptRecord="broken")
    rows = drain(stream, tmp_path).orderBy("_id").collect()
    assert rows == [
        Row(n=1, tags=["a"], broken=None, _id="1-0"),
        Row(n=None, tags=None, broken='{"n":"two","tags":"[\\"b\\""}', _id="2-0"),
    ]
