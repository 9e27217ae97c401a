"""spark_streams.debezium: change events of Debezium Server's Redis sink, in each of their forms, as typed rows."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import spark_streams
from spark_streams.errors import InvalidOptionError, SchemaError
from tests.spark.streams import drain, read_stream
from tools.servers.server import Server

pytestmark = pytest.mark.spark

CUSTOMERS = "id INT, name STRING"
ENTRIES = "_stream STRING, _id STRING, _fields MAP<BINARY, BINARY>"
STREAM = "shop.inventory.customers"


def event(op: str, before: object, after: object, **source: object) -> dict[str, object]:
    """A change event, as Debezium's connectors write it."""
    source = {"version": "3.2", "connector": "postgresql", "ts_ms": 1_700_000_000_000, "snapshot": "false", **source}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1_700_000_000_500}


def field(name: str, kind: str | None = None, **parameters: str) -> dict[str, object]:
    """A field of a Kafka Connect schema."""
    return {"field": name, "type": "any", "optional": True, "name": kind, "parameters": parameters or None}


def with_schema(payload: object, *fields: dict[str, object]) -> dict[str, object]:
    """An event within the converter's envelope."""
    row = {"type": "struct", "fields": list(fields), "optional": True}
    schema = {"type": "struct", "fields": [{**row, "field": "before"}, {**row, "field": "after"}]}
    return {"schema": schema, "payload": payload}


def fields_of(key: object, value: object, compact: bool = False, **headers: str) -> dict[bytes, bytes]:
    """The fields of an entry. A text is written unchanged."""
    texts = [text if isinstance(text, str) else json.dumps(text) for text in (key, value)]
    named = {texts[0]: texts[1]} if compact else {"key": texts[0], "value": texts[1], **headers}
    return {name.encode(): text.encode() for name, text in named.items()}


def frame_of(spark: SparkSession, *entries: dict[bytes, bytes], stream: str = STREAM) -> DataFrame:
    return spark.createDataFrame([(stream, f"{n + 1}-0", entry) for n, entry in enumerate(entries)], ENTRIES)


def converted(spark: SparkSession, schema: str, *entries: dict[bytes, bytes], **options: Any) -> list[Row]:
    """The rows in the order of the entries."""
    rows = spark_streams.debezium(frame_of(spark, *entries), schema, **options).collect()
    return sorted(rows, key=lambda row: int(row["_id"].partition("-")[0]))


@pytest.mark.parametrize("compact", [False, True], ids=["extended", "compact"])
@pytest.mark.parametrize("has_schema", [False, True], ids=["bare", "schema"])
def test_each_operation(spark: SparkSession, compact: bool, has_schema: bool) -> None:
    one, two = {"id": 1, "name": "ann"}, {"id": 1, "name": "bob"}
    events = [
        event("r", None, one), event("c", None, one), event("u", one, two), event("d", two, None),
        event("t", None, None), event("m", None, None),
    ]  # fmt: skip
    values = [with_schema(value, field("id"), field("name")) if has_schema else value for value in events]
    key = {"schema": {"type": "struct"}, "payload": {"id": 1}} if has_schema else {"id": 1}
    headers = {} if compact else {"HEADERKEY": "x"}
    rows = converted(spark, CUSTOMERS, *[fields_of(key, value, compact, **headers) for value in values])
    assert [(row["_operation"], row["id"], row["name"]) for row in rows] == [
        ("read", 1, "ann"), ("insert", 1, "ann"), ("update", 1, "bob"), ("delete", 1, "bob"),
        ("truncate", 1, None), ("message", 1, None),
    ]  # fmt: skip
    assert [row["_before"] and row["_before"]["name"] for row in rows] == [None, None, "ann", "bob", None, None]
    assert [row["_malformed"] for row in rows] == [None] * 6
    assert [row["_order"] for row in rows] == sorted(row["_order"] for row in rows)


def test_events_that_are_no_change_of_a_row_are_left_out(spark: SparkSession) -> None:
    assert converted(
        spark, CUSTOMERS,
        fields_of({"id": 1}, "default"),  # a tombstone
        fields_of({"serverName": "shop"}, {"ts_ms": 1}),
        fields_of({"databaseName": "shop"}, {"ddl": "CREATE TABLE x", "databaseName": "shop", "tableChanges": []}),
        fields_of({"id": "7"}, {"status": "BEGIN", "id": "7", "ts_ms": 1}),
        fields_of({"id": "7"}, {"status": "END", "id": "7", "event_count": 2}),
    ) == []  # fmt: skip
    heartbeat = frame_of(spark, fields_of("default", {"ts_ms": 1}), stream="__debezium-heartbeat.shop")
    assert spark_streams.debezium(heartbeat, CUSTOMERS).collect() == []


def test_a_delete_without_the_row_has_its_key(spark: SparkSession) -> None:
    """PostgreSQL with the default replica identity; and another text for null."""
    rows = converted(
        spark, CUSTOMERS,
        fields_of({"id": 4}, event("d", {"id": 0}, None)),
        fields_of({"id": 5}, event("d", None, None)),
        fields_of({"id": 6}, "-"),
        null="-",
    )  # fmt: skip
    assert [(row["id"], row["_operation"]) for row in rows] == [(0, "delete"), (5, "delete")]


def test_unwrapped_events(spark: SparkSession) -> None:
    """ExtractNewRecordState: with and without what it may add, and with tombstones."""
    one = {"id": 1, "name": "ann"}
    rows = converted(
        spark, CUSTOMERS,
        fields_of({"id": 1}, one),
        fields_of({"id": 1}, {**one, "__op": "c", "__source_ts_ms": 5}),
        fields_of({"id": 1}, {**one, "__deleted": "true"}, compact=True),
        fields_of({"id": 1}, {"schema": {"type": "struct", "fields": []}, "payload": one}),
        fields_of({"id": 2}, "default"),
        fields_of({"id": 2}, "[1]"),
        unwrapped=True,
    )  # fmt: skip
    assert [(row["_operation"], row["id"], row["name"]) for row in rows] == [
        ("update", 1, "ann"), ("insert", 1, "ann"), ("delete", 1, "ann"), ("update", 1, "ann"),
        ("delete", 2, None), (None, 2, None),
    ]  # fmt: skip
    assert rows[-1]["_malformed"] == "the value is no change event of Debezium"


def base64_of(number: int) -> str:
    bits = (number if number >= 0 else ~number).bit_length()
    return base64.b64encode(number.to_bytes(bits // 8 + 1, "big", signed=True)).decode()


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0.00"), (1250, "12.50"), (-1, "-0.01"), (-1250, "-12.50"), (127, "1.27"), (128, "1.28"), (-129, "-1.29"),
     (2**63 - 1, "92233720368547758.07"), (-(2**63), "-92233720368547758.08"), (2**63, None)],
)  # fmt: skip
def test_decimal_numbers_as_bytes(spark: SparkSession, number: int, expected: str | None) -> None:
    amount = field("amount", "org.apache.kafka.connect.data.Decimal", scale="2")
    value = with_schema(event("c", None, {"amount": base64_of(number)}), amount)
    (row,) = converted(spark, "amount DECIMAL(19,2)", fields_of({}, value))
    assert row["amount"] == (None if expected is None else Decimal(expected))
    assert row["_malformed"] == (None if expected else "column 'amount' does not fit DECIMAL(19,2)")


def test_values_of_each_type(spark: SparkSession) -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    micros = 1_700_000_000_123_456
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    fields = [
        field("ms", "io.debezium.time.Timestamp"), field("us", "io.debezium.time.MicroTimestamp"),
        field("ns", "io.debezium.time.NanoTimestamp"), field("connect", "org.apache.kafka.connect.data.Timestamp"),
        field("day", "io.debezium.time.Date"), field("plain", "io.debezium.time.MicroTimestamp"),
        field("wide", "org.apache.kafka.connect.data.Decimal", scale="3"),
    ]  # fmt: skip
    row_json = {
        "ms": micros // 1000, "us": micros, "ns": micros * 1000, "connect": micros // 1000,
        "zoned": "2023-11-14T22:13:20.123456Z", "day": 19675, "text_day": "2023-11-14", "plain": micros,
        "flag": True, "tiny": 1, "real": 1.5, "data": base64.b64encode(b"\x00\xff").decode(), "wide": base64_of(5),
        "tags": ["a", "b"], "place": {"x": 1}, "amount": "12.50", "big": 9_007_199_254_740_993,
    }  # fmt: skip
    schema = (
        "ms TIMESTAMP, us TIMESTAMP, ns TIMESTAMP, connect TIMESTAMP, zoned TIMESTAMP, day DATE, text_day DATE, "
        "plain TIMESTAMP_NTZ, flag BOOLEAN, tiny BOOLEAN, real DOUBLE, data BINARY, tags ARRAY<STRING>, "
        "place STRUCT<x: INT>, amount DECIMAL(10,2), big BIGINT, absent INT"
    )
    try:
        entry = fields_of({}, with_schema(event("c", None, row_json), *fields))
        (row,) = converted(spark, schema, entry)
        (other,) = converted(spark, "wide DECIMAL(10,2)", entry)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert row["_malformed"] is None
    in_ms = moment.replace(microsecond=123_000)
    shown = {name: row[name] for name in ("ms", "us", "ns", "connect", "zoned")}
    at = {name: value.astimezone(UTC) for name, value in shown.items()}
    assert at == {"ms": in_ms, "us": moment, "ns": moment, "connect": in_ms, "zoned": moment}
    assert (row["day"], row["text_day"]) == (date(2023, 11, 14),) * 2
    assert row["plain"] == moment.replace(tzinfo=None)
    assert (row["flag"], row["tiny"], row["real"], bytes(row["data"])) == (True, True, 1.5, b"\x00\xff")
    assert (row["tags"], row["place"]["x"], row["amount"]) == (["a", "b"], 1, Decimal("12.50"))
    assert (row["big"], row["absent"]) == (9_007_199_254_740_993, None)
    assert other["_malformed"] == "column 'wide' does not fit DECIMAL(10,2)"  # another scale than the event's


@pytest.mark.parametrize(
    ("unit", "number"), [("ms", 1_700_000_000_000), ("us", 1_700_000_000_000_000), ("ns", 1_700_000_000_000_000_000)]
)
def test_times_without_a_schema_need_their_unit(spark: SparkSession, unit: str, number: int) -> None:
    entry = fields_of({}, event("c", None, {"at": number}))
    (row,) = converted(spark, "at TIMESTAMP", entry, timestamps=unit)
    assert row["at"].timestamp() == 1_700_000_000
    (row,) = converted(spark, "at TIMESTAMP", entry)
    assert (row["at"], row["_malformed"]) == (None, "column 'at' does not fit TIMESTAMP")


HOSTILE = [
    {b"a": b"1", b"b": b"2"}, {b"\xff": b"\xfe"}, {b"key": b"\xff", b"value": b"\xff"},
    fields_of("{", "{"), fields_of("[]", "[]"), fields_of("1", "null"), fields_of({}, {"op": "x"}),
    fields_of({}, {"op": "c", "after": [1]}), fields_of({}, {"op": {"a": 1}}), fields_of({}, "[" * 5000),
    fields_of({}, '{"op": "c", "after": {"id": 1, "id": 2, "at": ' + "9" * 400 + "}}"),
    fields_of({}, event("c", None, {"at": 2**63 - 1, "day": 2**31 - 1, "id": 2**70, "amount": "1e400"})),
    fields_of({}, event("c", None, {"at": -(2**63), "day": -(2**31), "amount": "x" * 10_000, "data": "="})),
    fields_of({}, with_schema(event("c", None, {"amount": "////////////", "at": 1}),
                              field("amount", "org.apache.kafka.connect.data.Decimal", scale="2"),
                              field("amount", "other"), field("at", "io.debezium.time.NanoTimestamp"))),
    fields_of({}, {"schema": {"fields": 1}, "payload": event("c", None, {"id": 1})}),
]  # fmt: skip


@pytest.mark.parametrize("unwrapped", [False, True])
@pytest.mark.parametrize("unit", [None, "ms", "us", "ns"])
def test_no_event_ends_a_query(spark: SparkSession, unwrapped: bool, unit: str | None) -> None:
    schema = (
        "id INT, at TIMESTAMP, plain TIMESTAMP_NTZ, day DATE, amount DECIMAL(38,2), data BINARY, m MAP<STRING, INT>"
    )
    rows = converted(spark, schema, *HOSTILE, unwrapped=unwrapped, timestamps=unit)
    assert len(rows) == len(HOSTILE)
    assert all(row["_malformed"] for row in rows[:7] if not unwrapped)


def test_the_order_is_the_sources_then_the_entrys(spark: SparkSession) -> None:
    """Debezium appends an event again after an error of the server: it may come after a later one."""
    at = 1_700_000_000_000
    later = [
        {"ts_ms": at, "lsn": 99}, {"ts_ms": at, "lsn": 100}, {"ts_ms": at + 1, "lsn": 3},
        {"ts_ms": at + 2, "file": "bin.000009", "pos": 500, "row": 0},
        {"ts_ms": at + 2, "file": "bin.000009", "pos": 500, "row": 1},
        {"ts_ms": at + 2, "file": "bin.000010", "pos": 4, "row": 0},
    ]  # fmt: skip
    entries = [fields_of({}, event("c", None, {"id": n}, **source)) for n, source in enumerate(later)]
    rows = converted(spark, CUSTOMERS, *reversed(entries))
    assert [row["id"] for row in sorted(rows, key=lambda row: row["_order"])] == list(range(len(later)))


def test_wrong_arguments(spark: SparkSession) -> None:
    frame = frame_of(spark, {b"a": b"1"})
    with pytest.raises(SchemaError, match="column '_order' twice"):
        spark_streams.debezium(frame, "id INT, _order STRING")
    with pytest.raises(SchemaError, match="column '_stream' twice"):
        spark_streams.debezium(frame, "_Stream INT".replace("_S", "_s"))
    with pytest.raises(SchemaError, match="needs column '_fields'"):
        spark_streams.debezium(frame.drop("_fields"), CUSTOMERS)
    with pytest.raises(SchemaError, match="names no columns"):
        spark_streams.debezium(frame, "INT")
    with pytest.raises(InvalidOptionError, match="timestamps='s' must be one of 'ms', 'us', 'ns'"):
        spark_streams.debezium(frame, CUSTOMERS, timestamps="s")  # type: ignore[arg-type]


@pytest.mark.parametrize("compact", [False, True])
def test_a_query_reads_what_debezium_server_writes(
    spark: SparkSession, server: Server, tmp_path: Path, compact: bool
) -> None:
    client = server.client(decode_responses=True)
    for n in range(20):
        client.xadd(STREAM, fields_of({"id": n}, event("c", None, {"id": n, "name": f"n{n}"}), compact))  # type: ignore[arg-type]
    client.xadd(STREAM, {"key": "?", "value": "?", "more": "?"})
    changes = spark_streams.debezium(read_stream(spark, server, ENTRIES, streams=STREAM), CUSTOMERS)
    rows = drain(changes.drop("_fields", "_before"), tmp_path).collect()
    assert sorted(row["name"] for row in rows if row["_operation"] == "insert") == sorted(f"n{n}" for n in range(20))
    assert [row["_malformed"] for row in rows if row["_malformed"]] == ["the value is no change event of Debezium"]
