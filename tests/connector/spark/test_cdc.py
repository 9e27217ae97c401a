"""spark_streams.debezium: change events of Debezium Server's Redis sink, in each of their forms, as typed rows."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

import spark_streams
from spark_streams.connector.errors import InvalidOptionError, SchemaError
from tests.connector.spark.streams import collected, drain, read_stream
from tools.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(1)]

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
    rows = collected(spark_streams.debezium(frame_of(spark, *entries), schema, **options))
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


SCHEMA_CHANGE = {
    "source": {"connector": "sqlserver"}, "databaseName": "shop", "schemaName": "dbo", "ddl": None,
    "tableChanges": [{"type": "CREATE", "id": "shop.dbo.x"}],
}  # fmt: skip


def test_events_that_are_no_change_of_a_row_are_left_out(spark: SparkSession) -> None:
    assert converted(
        spark, CUSTOMERS,
        fields_of({"id": 1}, "default"),  # a tombstone
        fields_of({"serverName": "shop"}, {"ts_ms": 1}),
        fields_of({"databaseName": "shop"}, {"ddl": "CREATE TABLE x", "databaseName": "shop", "tableChanges": []}),
        fields_of({"databaseName": "shop"}, SCHEMA_CHANGE),  # of SQL Server and Db2
        fields_of({"databaseName": "shop"}, {"schema": {"type": "struct"}, "payload": SCHEMA_CHANGE}),
        fields_of({"id": "7"}, {"status": "BEGIN", "id": "7", "ts_ms": 1}),
        fields_of({"id": "7"}, {"status": "END", "id": "7", "event_count": 2}),
    ) == []  # fmt: skip
    heartbeat = frame_of(spark, fields_of("default", {"ts_ms": 1}), stream="__debezium-heartbeat.shop")
    assert collected(spark_streams.debezium(heartbeat, CUSTOMERS)) == []


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


NO_ROWS: list[object] = [None, '{"id": 1, "name": "ann"}', "", [], [{"id": 1}], 1, True, [1, 2], "null"]
NO_ROW, NO_COLUMN = "the event has no row", "the row has no column of the schema"


@pytest.mark.parametrize("has_schema", [False, True], ids=["bare", "schema"])
def test_a_row_that_is_missing_or_no_object_is_malformed(spark: SparkSession, has_schema: bool) -> None:
    """Before, it was a row of nulls, which overwrote the row of its key. MongoDB's rows are JSON texts."""
    values: list[object] = [event(op, None, row) for row in NO_ROWS for op in "cur"]
    values += [{"op": "u", "source": {}}, event("u", None, {}), event("c", None, {"other": 1})]
    if has_schema:
        values = [with_schema(value, field("id"), field("name")) for value in values]
    rows = converted(spark, CUSTOMERS, *[fields_of({"id": 1}, value) for value in values])
    expected = [NO_ROW] * (len(NO_ROWS) * 3 + 1) + [NO_COLUMN] * 2
    assert [(row["_malformed"], row["name"]) for row in rows] == [(reason, None) for reason in expected]


def test_a_delete_needs_a_row_or_a_key(spark: SparkSession) -> None:
    """The key of MongoDB's documents, for one, with a row that is a text."""
    cases: list[tuple[object, object, str | None]] = [
        ({"id": 1}, None, None), ({"id": 1}, '{"id": 1}', None), ("default", {"id": 1}, None),
        ("default", None, NO_ROW), ({"other": 1}, None, NO_ROW), ({"other": 1}, {"another": 1}, NO_COLUMN),
        ("[1]", [1], NO_ROW),
    ]  # fmt: skip
    rows = converted(spark, CUSTOMERS, *[fields_of(key, event("d", before, None)) for key, before, _ in cases])
    assert [(row["_malformed"], row["id"]) for row in rows] == [(why, None if why else 1) for *_, why in cases]


def test_a_column_named_as_a_part_of_the_envelope_is_one(spark: SparkSession) -> None:
    """Only an object with exactly the members `schema` and `payload` is the converter's envelope."""
    payload = {"id": 7, "name": "within"}
    struct = {"type": "struct", "fields": []}
    cases: list[tuple[object, object, tuple[object, ...]]] = [
        ({"id": 1}, {"id": 1, "name": "ann", "payload": payload}, (1, "ann", payload)),
        ({"id": 1}, {"payload": payload}, (1, None, payload)),
        ({"id": 1}, {"id": 1, "payload": payload, "schema": struct}, (1, None, payload)),
        ({"id": 1}, {"schema": struct, "payload": {"id": 1, "payload": payload}}, (1, None, payload)),
        ({"id": 2, "payload": payload}, "default", (2, None, payload)),
        ({"schema": struct, "payload": {"id": 3}}, "default", (3, None, None)),
    ]  # fmt: skip
    schema = "id INT, name STRING, payload STRING"
    rows = converted(spark, schema, *[fields_of(key, value) for key, value, _ in cases], unwrapped=True)
    shown = [(row["id"], row["name"], row["payload"] and json.loads(row["payload"])) for row in rows]
    assert shown == [expected for *_, expected in cases]
    assert [row["_malformed"] for row in rows] == [None] * len(cases)


DATES: list[tuple[str | None, object, date | None]] = [
    ("io.debezium.time.Date", 19_675, date(2023, 11, 14)),
    ("org.apache.kafka.connect.data.Date", 19_675, date(2023, 11, 14)),
    *[
        (f"io.debezium.time.{name}", number, None)
        for name in ("Year", "Time", "MicroTime", "NanoTime", "Timestamp", "MicroTimestamp", "NanoTimestamp", "IsoDate")
        for number in (2023, "2023")
    ],
    ("org.apache.kafka.connect.data.Time", 2023, None),
    ("org.apache.kafka.connect.data.Timestamp", 2023, None),
    (None, 2023, None),
    ("io.debezium.time.IsoDate", "2017-09-15Z", date(2017, 9, 15)),
    ("io.debezium.time.IsoDate", "2017-09-15+00:00", date(2017, 9, 15)),
    ("io.debezium.time.IsoDate", "2017-09-15", date(2017, 9, 15)),
    ("io.debezium.time.IsoDate", "2017-09-31Z", None),
    ("io.debezium.time.IsoDate", "2017-09-15+02:00", None),
    ("io.debezium.time.ZonedTimestamp", "2017-09-15T10:00:00Z", date(2017, 9, 15)),
]


def test_a_number_is_a_date_only_if_the_schema_says_so(spark: SparkSession) -> None:
    """Of a column, and of the elements of an array. Without a schema a number is days, and a text may be IsoDate's."""
    entries = []
    for kind, value, _ in DATES:
        each: dict[str, object] = {**field("each"), "items": {"type": "any", "name": kind}}
        entries.append(
            fields_of({}, with_schema(event("c", None, {"day": value, "each": [value]}), field("day", kind), each))
        )
    rows = converted(spark, "day DATE, each ARRAY<DATE>", *entries)
    for row, (kind, value, expected) in zip(rows, DATES, strict=True):
        assert (row["day"], row["each"]) == (expected, expected and [expected]), (kind, value)
        assert row["_malformed"] == (None if expected else "column 'day' does not fit DATE"), (kind, value)
    bare = [fields_of({}, event("c", None, {"day": value})) for value in (19_675, "2023-11-14Z")]
    assert [row["day"] for row in converted(spark, "day DATE", *bare)] == [date(2023, 11, 14)] * 2


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
    assert rows[-1]["_malformed"] == "the value is not a change event of Debezium"


def base64_of(number: int) -> str:
    bits = (number if number >= 0 else ~number).bit_length()
    return base64.b64encode(number.to_bytes(bits // 8 + 1, "big", signed=True)).decode()


AMOUNTS: list[tuple[int, str | None]] = [
    (0, "0.00"), (1250, "12.50"), (-1, "-0.01"), (-1250, "-12.50"), (127, "1.27"), (128, "1.28"), (-129, "-1.29"),
    (2**63 - 1, "92233720368547758.07"), (-(2**63), "-92233720368547758.08"), (2**63, "92233720368547758.08"),
    (10**19 - 1, "99999999999999999.99"), (10**19, None), (2**200, None),
]  # fmt: skip


def test_decimal_numbers_as_bytes(spark: SparkSession) -> None:
    amount = field("amount", "org.apache.kafka.connect.data.Decimal", scale="2")
    values = [with_schema(event("c", None, {"amount": base64_of(number)}), amount) for number, _ in AMOUNTS]
    rows = converted(spark, "amount DECIMAL(19,2)", *[fields_of({}, value) for value in values])
    for row, (number, expected) in zip(rows, AMOUNTS, strict=True):
        assert row["amount"] == (None if expected is None else Decimal(expected)), number
        unfit = None if expected else "column 'amount' does not fit DECIMAL(19,2)"
        assert row["_malformed"] == unfit, number


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


def columns_of(row: Row, schema: str) -> list[Any]:
    return [row[name] for name in cast(StructType, StructType.fromDDL(schema)).names]


def event_text(members: str) -> str:
    """An event whose row is this JSON, unchanged: json.dumps writes no 1.10."""
    return f'{{"op": "c", "source": {{"ts_ms": 1700000000000}}, "after": {{{members}}}}}'


def enveloped(text: str, *fields: dict[str, object]) -> str:
    """The same event with a schema."""
    envelope: Any = with_schema(None, *fields)
    return f'{{"schema": {json.dumps(envelope["schema"])}, "payload": {text}}}'


TIMES = {
    "ns": [
        ("1700000000000016000", 1_700_000_000_000_016), ("1700000000000016999", 1_700_000_000_000_016), ("-1", -1),
        ("-1000", -1), ("-1001", -2), ("999", 0), ("0", 0), (str(-(2**63)), -(2**63) // 1000),
        (str(2**63 - 1), (2**63 - 1) // 1000), ("1.700000000000016E18", 1_700_000_000_000_016), ("-1.5", -1),
        (str(2**63), None),
    ],
    "us": [
        ("1700000000000016", 1_700_000_000_000_016), ("-1", -1), ("-1.5", -2),
        ("-62135510400000000", -62_135_510_400_000_000), ("253402300799999999", 253_402_300_799_999_999),
        ("1e30", None), ("253402300800000000", None),
    ],
    "ms": [
        ("1700000000016", 1_700_000_000_016_000), ("-1", -1000), ("1.7e12", 1_700_000_000_000_000),
        ("1700000000000.016", 1_700_000_000_000_016), ("-62135596800001", None), ("253402300800000", None),
    ],
}  # fmt: skip
KINDS_OF_TIMES = {"ns": "NanoTimestamp", "us": "MicroTimestamp", "ms": "Timestamp"}


@pytest.mark.parametrize("unit", [*TIMES])
def test_a_number_becomes_a_time_without_losing_a_microsecond(spark: SparkSession, unit: Any) -> None:
    """Of an event without a schema, of one with it, and within an array."""
    kind = f"io.debezium.time.{KINDS_OF_TIMES[unit]}"
    entries = []
    for number, _ in TIMES[unit]:
        text = event_text(f'"at": {number}, "plain": {number}, "each": [{number}]')
        entries += [fields_of({}, text), fields_of({}, enveloped(text, field("at", kind), field("plain", kind)))]
    schema = "at TIMESTAMP, plain TIMESTAMP_NTZ, each ARRAY<TIMESTAMP>"
    rows = converted(spark, schema, *entries, timestamps=unit)
    for row, (number, micros) in zip(rows, [each for each in TIMES[unit] for _ in range(2)], strict=True):
        expected = None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
        shown = [row["at"], row["plain"], *(row["each"] or [None])]
        assert [value and value.replace(tzinfo=UTC) for value in shown] == [expected] * 3, number
        assert (row["_malformed"] is None) == (micros is not None), number


DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE = "io.debezium.data.VariableScaleDecimal"


def as_bytes(number: int, size: int) -> str:
    """Bytes of this many, more than the number needs."""
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


NINES = 10**38 - 1
OF_1234 = str(int.from_bytes(base64.b64decode("1234"), signed=True))
DECIMALS: list[tuple[str, str, dict[str, object] | None, str | None]] = [
    # a JSON number, with a schema that says bytes
    ("DECIMAL(18,0)", "12345678", field("n", DECIMAL, scale="0"), "12345678"),
    ("DECIMAL(18,2)", "1234", field("n", DECIMAL, scale="2"), "1234"),
    ("DECIMAL(18,2)", "-12.5", field("n", DECIMAL, scale="2"), "-12.50"),
    # bytes
    ("DECIMAL(18,0)", '"1234"', field("n", DECIMAL, scale="0"), OF_1234),
    ("DECIMAL(38,2)", f'"{base64_of(NINES)}"', field("n", DECIMAL, scale="2"), f"{'9' * 36}.99"),
    ("DECIMAL(38,2)", f'"{base64_of(-NINES)}"', field("n", DECIMAL, scale="2"), f"-{'9' * 36}.99"),
    ("DECIMAL(38,0)", f'"{base64_of(10**38)}"', field("n", DECIMAL, scale="0"), None),
    ("DECIMAL(38,0)", f'"{base64_of(-(10**38))}"', field("n", DECIMAL, scale="0"), None),
    ("DECIMAL(38,38)", f'"{base64_of(NINES)}"', field("n", DECIMAL, scale="38"), f"0.{'9' * 38}"),
    ("DECIMAL(10,2)", f'"{as_bytes(-1250, 40)}"', field("n", DECIMAL, scale="2"), "-12.50"),
    ("DECIMAL(10,2)", f'"{as_bytes(1250, 17)}"', field("n", DECIMAL, scale="2"), "12.50"),
    ("DECIMAL(10,4)", f'"{base64_of(1250)}"', field("n", DECIMAL, scale="2"), "12.5000"),
    ("DECIMAL(10,1)", f'"{base64_of(1250)}"', field("n", DECIMAL, scale="2"), "12.5"),
    ("DECIMAL(10,1)", f'"{base64_of(1255)}"', field("n", DECIMAL, scale="2"), None),
    ("DECIMAL(10,0)", f'"{base64_of(5)}"', field("n", DECIMAL, scale="-2"), "500"),
    ("DECIMAL(10,0)", '""', field("n", DECIMAL, scale="0"), None),
    # a scale for each value
    ("DECIMAL(38,2)", f'{{"scale": 2, "value": "{base64_of(NINES)}"}}', field("n", VARIABLE), f"{'9' * 36}.99"),
    ("DECIMAL(10,2)", f'{{"scale": 3, "value": "{base64_of(-1250)}"}}', field("n", VARIABLE), "-1.25"),
    ("DECIMAL(10,2)", f'{{"scale": -1, "value": "{base64_of(7)}"}}', None, "70"),
    ("DECIMAL(10,2)", f'{{"scale": 3, "value": "{base64_of(1255)}"}}', field("n", VARIABLE), None),
    ("DECIMAL(10,2)", '{"scale": 2}', field("n", VARIABLE), None),
    # a text, which the schema says is one
    ("DECIMAL(10,2)", '"1234"', field("n"), "1234.00"),
    # without a schema: digits may be base64
    ("DECIMAL(10,2)", '"1234"', None, None),
    ("DECIMAL(18,0)", '"12345678"', None, None),
    ("DECIMAL(10,2)", '"+123"', None, None),
    ("DECIMAL(10,2)", '"12.50"', None, "12.50"),
    ("DECIMAL(10,2)", '"-123"', None, "-123.00"),
    ("DECIMAL(10,2)", '"12345"', None, "12345.00"),
    # every digit
    ("DECIMAL(18,2)", "1234567890123456.78", None, "1234567890123456.78"),
    ("DECIMAL(17,0)", "12345678901234567", None, "12345678901234567"),
    ("DECIMAL(38,0)", "9" * 38, None, "9" * 38),
    ("DECIMAL(38,38)", "-0." + "9" * 38, None, "-0." + "9" * 38),
    ("DECIMAL(18,2)", "1.23456789012345678e15", None, "1234567890123456.78"),
    ("DECIMAL(18,2)", "1.234E-2", None, None),
    ("DECIMAL(18,4)", "1.23E-2", None, "0.0123"),
    ("DECIMAL(4,2)", "1.10000", None, "1.10"),
    ("DECIMAL(4,2)", "1.105", None, None),
    ("DECIMAL(4,2)", "100", None, None),
    ("DECIMAL(4,2)", "-0.0", None, "0"),
    ("DECIMAL(10,0)", "1e400", None, None),
    ("DECIMAL(10,0)", "1e99999", None, None),
]  # fmt: skip


# Two in a query: Spark's time for a query grows faster than its number of columns.
DECIMAL_TYPES = list(dict.fromkeys(column for column, *_ in DECIMALS))


@pytest.mark.parametrize("types", [DECIMAL_TYPES[n : n + 2] for n in range(0, len(DECIMAL_TYPES), 2)], ids=" ".join)
def test_decimal_numbers_keep_every_digit(spark: SparkSession, types: list[str]) -> None:
    """As a column, as an element and as a member; null if a digit does not fit. Each case is an event."""
    names = {column: f"n{place}" for place, column in enumerate(types)}
    cases = [case for case in DECIMALS if case[0] in names]
    entries = []
    for column, value, kind, _ in cases:
        name = names[column]
        members = f'"{name}": {value}, "{name}s": [{value}, null]'
        if kind is None:
            entries.append(fields_of({}, event_text(f'{members}, "{name}m": {{"a": {value}}}')))
        else:
            fields = [kind | {"field": name}, field(f"{name}s") | {"items": kind}]
            entries.append(fields_of({}, enveloped(event_text(members), *fields)))
    schema = ", ".join(
        f"{name} {column}, {name}s ARRAY<{column}>, {name}m MAP<STRING, {column}>" for column, name in names.items()
    )
    for row, case in zip(converted(spark, schema, *entries), cases, strict=True):
        name, number = names[case[0]], None if case[3] is None else Decimal(case[3])
        assert row[name] == number, case
        assert row[f"{name}s"] == (None if number is None else [number, None]), case
        assert row[f"{name}m"] == (None if number is None or case[2] is not None else {"a": number}), case


def test_the_form_of_a_decimal_number_without_a_schema_can_be_set(spark: SparkSession) -> None:
    entry = fields_of({}, event_text('"n": "1234", "m": 1234'))
    schema = "n DECIMAL(12,2), m DECIMAL(12,2)"
    (untold,) = converted(spark, schema, entry)
    (text,) = converted(spark, schema, entry, decimals="text")
    (data,) = converted(spark, schema, entry, decimals="base64")
    assert untold["_malformed"] == (
        "column 'n' may be text or base64, and the event has no schema. Set decimals='text' or decimals='base64'"
    )
    of_bytes = Decimal(int.from_bytes(base64.b64decode("1234"), signed=True)) / 100
    assert [(row["n"], row["m"]) for row in (text, data)] == [(1234, 1234), (of_bytes, 1234)]
    assert text["_malformed"] is data["_malformed"] is None


def test_texts_of_numbers_are_unchanged(spark: SparkSession) -> None:
    """Nothing is read as a floating-point number, at any depth, and no text is taken for a number."""
    members = (
        '"a": 1.10, "b": "1.10", "c": 1234567890123456.78, "d": 1e400, "e": {"x": 1.10, "y": [0.1000, "\\u0001"]}, '
        '"f": "\\u00015", "g": "u0001", "h": "\\\\u00015", "i": true, "j": "\\u0001u0001\\u0001", '
        '"k": "{\\"x\\": 1.10}", '
        '"l": {"x": 1.10, "y": 1234567890123456.78}, "m": {"x": 1.10}, "n": -0, "u0001 \\u0001": 1.10'
    )
    schema = ", ".join(f"{name} STRING" for name in "abcdefghijk")
    schema += ", l STRUCT<x: STRING, y: DECIMAL(18,2)>, m MAP<STRING, STRING>, n STRING, `u0001 \x01` STRING"
    (row,) = converted(spark, schema, fields_of({}, event_text(members)))
    assert row["_malformed"] is None
    assert columns_of(row, schema) == [
        "1.10", "1.10", "1234567890123456.78", "1e400", '{"x":1.10,"y":[0.1000,"\\u0001"]}', "\x015", "u0001",
        "\\u00015", "true", "\x01u0001\x01", '{"x": 1.10}', Row(x="1.10", y=Decimal("1234567890123456.78")),
        {"x": "1.10"}, "-0", "1.10",
    ]  # fmt: skip


def test_a_part_that_does_not_fit_makes_the_value_null(spark: SparkSession) -> None:
    schema = "a STRUCT<x: INT>, b ARRAY<INT>, c MAP<STRING, STRUCT<x: INT>>, d STRUCT<x: INT>"
    good = '"a": {"x": 1}, "b": [1, null], "c": {"k": {"x": 2}}, "d": null'
    texts = [good, *(good.replace(*change) for change in [("[1,", '["x",'), ('{"x": 1}', '{"x": 1.5}'), ("2", '"y"')])]
    texts.append(good.replace('"d": null', '"d": "text"'))
    rows = converted(spark, schema, *[fields_of({}, event_text(text)) for text in texts])
    assert columns_of(rows[0], schema) == [Row(x=1), [1, None], {"k": Row(x=2)}, None]
    assert [row["_malformed"] and row["_malformed"].split("'")[1] for row in rows] == [None, "b", "a", "c", "d"]


def test_names_in_another_case_are_those_of_the_columns(spark: SparkSession) -> None:
    """As Spark matches columns. Of members with one name, the last one counts; an exact name comes first."""
    amount = field("AMOUNT", DECIMAL, scale="2")
    entries = [
        fields_of({"ID": 1}, with_schema(event("c", None, {"Name": "ann", "Amount": base64_of(1250)}), amount)),
        fields_of({}, event_text('"ID": 1, "id": 2, "Id": 3, "NAME": "x", "Name": "y", "amount": 1.5, "amount": 2.5')),
    ]
    schema = "id INT, name STRING, amount DECIMAL(10,2)"
    rows = converted(spark, schema, *entries)
    assert [columns_of(row, schema) for row in rows] == [[1, "ann", Decimal("12.50")], [2, "y", Decimal("2.50")]]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        rows = converted(spark, schema, *entries)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert [columns_of(row, schema) for row in rows] == [[None, None, None], [2, None, Decimal("2.50")]]


def test_a_field_that_occurs_twice_has_its_last_value(spark: SparkSession) -> None:
    """Spark accepts a map with a key twice from a source, but makes none."""
    one, two = (json.dumps(event("c", None, {"id": n})) for n in (1, 2))
    fields = pa.array([[("key", "{}"), ("value", one), ("value", two)]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"_stream": ["s"], "_id": ["1-0"], "_fields": fields})
    (row,) = collected(spark_streams.debezium(spark.createDataFrame(table), "id INT"))
    assert row["id"] == 2


@pytest.mark.parametrize("column", ["id", "iD"])
def test_an_event_costs_in_proportion_to_its_bytes(spark: SparkSession, column: str) -> None:
    """Before, 47 kB of one name took 87 s, as each pair of members was compared. The last member counts."""
    others = "".join(f'"other{n}": 1, ' for n in range(2_000))
    members = f'"{column}": 1, {others}' * 4 + f'"{column}": 2, "Name": "ann", "NAME": "bob"'
    begin = monotonic()
    (row,) = converted(spark, CUSTOMERS, fields_of({}, event_text(members)))
    assert [*columns_of(row, CUSTOMERS), row["_malformed"]] == [2, "bob", None]
    assert monotonic() - begin < 60


LONG = 100_000
LONG_NUMBERS = {
    "1" * LONG: None, "1" * LONG + "x": None, "1." + "0" * LONG: None, "." * LONG: None, " " * LONG + "1": 1,
    "1" * (LONG // 2) + "." + "1" * (LONG // 2) + "y": None, "0" * 999 + "1": 1, "0" * 1000 + "1": None,
    "1." + "0" * 998: 1, "1." + "0" * 997 + "1": None,
}  # fmt: skip


@pytest.mark.parametrize("decimals", ["text", "base64", None])
def test_a_long_number_is_malformed(spark: SparkSession, decimals: Any) -> None:
    """Its text is not searched, and not cast: both take a time that grows with the square of its length."""
    entries = [fields_of({}, event_text(f'"n": "{text}", "d": "{text}"')) for text in LONG_NUMBERS]
    begin = monotonic()
    rows = converted(spark, "n DECIMAL(20,4), d DATE", *entries, decimals=decimals)
    assert monotonic() - begin < 60
    if decimals == "text":
        assert [row["n"] for row in rows] == list(LONG_NUMBERS.values())
    assert [row["_malformed"] is None for row in rows if row["n"] is None] == [False] * sum(
        row["n"] is None for row in rows
    )


def test_a_scale_without_a_negative_number_ends_no_query(spark: SparkSession) -> None:
    """The exponent of the scale -2³¹ is no INT."""
    entry = fields_of({}, event_text('"n": {"scale": -2147483648, "value": "AQ=="}'))
    (row,) = converted(spark, "n DECIMAL(10,2)", entry)
    assert (row["n"], row["_malformed"]) == (None, "column 'n' does not fit DECIMAL(10,2)")


PLACEHOLDER = "__debezium_unavailable_value"
UUID_PLACEHOLDER = str(uuid.UUID(bytes=hashlib.md5(PLACEHOLDER.encode()).digest(), version=3))
LARGE = {
    "a": ("STRING", PLACEHOLDER),
    "b": ("BINARY", base64.b64encode(PLACEHOLDER.encode()).decode()),
    "c": ("ARRAY<STRING>", [PLACEHOLDER]),
    "d": ("ARRAY<BINARY>", [base64.b64encode(PLACEHOLDER.encode()).decode()]),
    "e": ("ARRAY<INT>", list(PLACEHOLDER.encode())),
    "f": ("ARRAY<DOUBLE>", [float(byte) for byte in PLACEHOLDER.encode()]),
    "g": ("MAP<STRING, STRING>", {PLACEHOLDER: PLACEHOLDER}),
    "h": ("STRING", {PLACEHOLDER: PLACEHOLDER}),
    "i": ("STRING", json.dumps({PLACEHOLDER: PLACEHOLDER})),
    "j": ("DECIMAL(10,2)", PLACEHOLDER),
    "k": ("ARRAY<STRING>", [UUID_PLACEHOLDER]),
    "l": ("STRING", PLACEHOLDER.encode().hex()),
    "m": ("TIMESTAMP", PLACEHOLDER),
    "n": ("STRUCT<x: INT>", PLACEHOLDER),
}


@pytest.mark.parametrize("unwrapped", [False, True])
@pytest.mark.parametrize("has_schema", [False, True])
def test_a_large_value_that_has_not_changed_is_null_and_named(
    spark: SparkSession, unwrapped: bool, has_schema: bool
) -> None:
    """In each form that Debezium gives its placeholder, for each type of column."""
    image = {"id": 1, **{name: value for name, (_, value) in LARGE.items()}, "z": "text"}
    value: Any = image if unwrapped else event("u", image, image)
    if has_schema:
        fields = [field(name) for name in image]
        value = (
            {"schema": {"type": "struct", "fields": fields}, "payload": value}
            if unwrapped
            else with_schema(value, *fields)
        )
    schema = f"id INT, {', '.join(f'{name} {kind}' for name, (kind, _) in LARGE.items())}, z STRING"
    (row,) = converted(spark, schema, fields_of({"id": 1}, value), unwrapped=unwrapped)
    assert row["_malformed"] is None
    assert columns_of(row, schema) == [1, *([None] * len(LARGE)), "text"]
    assert row["_unchanged"] == list(LARGE)
    if not unwrapped:
        assert [*row["_before"]] == columns_of(row, schema)


def test_the_placeholder_is_a_setting(spark: SparkSession) -> None:
    entry = fields_of({}, event("u", None, {"id": 1, "name": "n/a", "more": [PLACEHOLDER], "MORE": None}))
    schema = "id INT, Name STRING, more ARRAY<STRING>"
    (row,) = converted(spark, schema, entry, unavailable="n/a")
    assert (columns_of(row, schema), row["_unchanged"]) == ([1, None, [PLACEHOLDER]], ["Name"])
    (row,) = converted(spark, schema, entry)
    assert (columns_of(row, schema), row["_unchanged"]) == ([1, "n/a", None], ["more"])
    (row,) = converted(spark, schema, fields_of({"id": 1}, "x"))
    assert row["_unchanged"] == []


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
    with pytest.raises(InvalidOptionError, match="decimals='hex' must be one of 'text', 'base64'"):
        spark_streams.debezium(frame, CUSTOMERS, decimals="hex")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="unavailable must not be empty"):
        spark_streams.debezium(frame, CUSTOMERS, unavailable="")
    with pytest.raises(SchemaError, match="column '_unchanged' twice"):
        spark_streams.debezium(frame, "id INT, _unchanged STRING")


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
    assert [row["_malformed"] for row in rows if row["_malformed"]] == ["the value is not a change event of Debezium"]
