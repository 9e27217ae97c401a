"""Change events of Debezium Server's Redis sink as typed rows: DataFrame expressions only, so also over Connect.

    extended   key {"id": 1}   value {"before": …, "after": …, "source": …, "op": "u"}   and headers as further fields
    compact    {"id": 1} {"before": …}                                the key is the name of the only field

Key and value are JSON of Kafka Connect's converter, with or without its envelope {"schema": …, "payload": …}. A null
key or value is the text `default`. The schema tells the unit of a time and the scale of a decimal number
(docs/internals/facts.md, D1 to D4).

An event is a text that anyone may have written: every conversion here returns null for what it cannot convert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_streams.errors import InvalidOptionError, SchemaError

Unit = Literal["ms", "us", "ns"]

_NEEDED = ("_stream", "_id", "_fields")
_ADDED = ("_operation", "_order", "_before", "_malformed")
_TEXTS = "MAP<STRING, STRING>"
_FIELD = "field: STRING, name: STRING, parameters: MAP<STRING, STRING>"
_SCHEMA = f"STRUCT<fields: ARRAY<STRUCT<{_FIELD}, fields: ARRAY<STRUCT<{_FIELD}>>>>>"
_EVENT = f"op: STRING, before: {_TEXTS}, after: {_TEXTS}, source: {_TEXTS}, ddl: STRING, status: STRING"
_OPERATIONS = {"r": "read", "c": "insert", "u": "update", "d": "delete", "t": "truncate", "m": "message"}
_HEARTBEAT = "__debezium-heartbeat"
_NUMBER = r"^-?\d{1,19}$"
_PER_SECOND: dict[Unit, int] = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Names of Kafka Connect's and Debezium's types of times, by unit.
_TIMES: dict[Unit, str] = {"ms": r"\.Timestamp$", "us": r"\.MicroTimestamp$", "ns": r"\.NanoTimestamp$"}
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds: the years 1 to 9999, which Spark and Python can represent
_LARGEST_SCALE = 17  # of a decimal number of 8 bytes, so that Spark multiplies without rounding


def debezium(
    df: DataFrame,
    schema: str | StructType,
    *,
    unwrapped: bool = False,
    timestamps: Unit | None = None,
    null: str = "default",
) -> DataFrame:
    """Convert change events that Debezium Server has written to streams into rows.

    The result has the columns of `df` and those of `schema`, and `_operation` (`read`, `insert`, `update`, `delete`,
    `truncate`, `message`), `_order` (a text: of the events of a key, the greatest is the latest), `_before` (the row
    before the change) and `_malformed` (why the event or a value cannot be read; null if it can). A delete has the
    values of the row before it, and of its key. Heartbeats, schema changes, marks of transactions, and the tombstones
    that follow deletes are left out.

    Args:
        df: Streaming or batch frame of `format("rstream")` with the columns `_stream STRING`, `_id STRING` and
            `_fields MAP<BINARY, BINARY>`.
        schema: Columns of the table, as DDL or StructType.
        unwrapped: The events are rows: Debezium's transformation ExtractNewRecordState has unwrapped them. If it adds
            `__op` or `__deleted`, these tell the operation; otherwise it is `update`. A tombstone is a delete of its
            key. `_order` is then the order of the entries.
        timestamps: Unit of times that are numbers, in events without a schema. Without it they are malformed.
        null: Text for a null key or value, as Debezium's `debezium.sink.redis.null.key` and `null.value` set it.

    Returns:
        A row for each event.

    Raises:
        SchemaError: A column is missing, or a name is used twice.
        InvalidOptionError: An argument has an unknown value.
    """
    row = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(row, StructType):
        raise SchemaError(f"schema {schema!r} names no columns: write it as 'id BIGINT, name STRING'")
    _check(df, row, timestamps)
    fields = F.col("_fields").cast(_TEXTS)
    is_extended = F.try_element_at(fields, F.lit("value")).isNotNull()
    is_compact = F.size(fields) == 1
    texts = df.where(~F.col("_stream").startswith(_HEARTBEAT)).select(
        "*",
        F.when(is_extended, F.try_element_at(fields, F.lit("key")))
        .when(is_compact, F.get(F.map_keys(fields), F.lit(0)))
        .alias("__key"),
        F.when(is_extended, F.try_element_at(fields, F.lit("value")))
        .when(is_compact, F.get(F.map_values(fields), F.lit(0)))
        .alias("__value"),
    )
    payload = _TEXTS if unwrapped else f"STRUCT<{_EVENT}>"
    parsed = texts.select(
        "*",
        F.coalesce(F.col("__value") == null, F.lit(False)).alias("__is_tombstone"),
        F.from_json("__value", f"STRUCT<schema: {_SCHEMA}, payload: {payload}>").alias("__wrapped"),
        F.from_json("__value", payload).alias("__bare"),
        F.coalesce(F.from_json("__key", f"STRUCT<payload: {_TEXTS}>")["payload"], F.from_json("__key", _TEXTS)).alias(
            "__keys"
        ),
    )
    events = parsed.select("*", F.coalesce(F.col("__wrapped.payload"), F.col("__bare")).alias("__event"))
    staged = events.select("*", *(_unwrapped_parts() if unwrapped else _event_parts()))
    staged = staged.where("NOT __is_other")
    converter = _Converter(timestamps)
    row_texts = {
        field.name: F.coalesce(
            F.try_element_at("__image", F.lit(field.name)), F.try_element_at("__keys", F.lit(field.name))
        )
        for field in row
    }
    before_texts = {field.name: F.try_element_at("__before", F.lit(field.name)) for field in row}
    typed = staged.select(
        "*",
        F.struct(*[converter.value(row_texts[field.name], field).alias(field.name) for field in row]).alias("__row"),
        F.struct(*[row_texts[field.name].alias(field.name) for field in row]).alias("__texts"),
        F.when(
            F.col("__before").isNotNull(),
            F.struct(*[converter.value(before_texts[field.name], field).alias(field.name) for field in row]),
        ).alias("_before"),
    )
    operation = F.coalesce(*[F.when(F.col("__op") == op, F.lit(name)) for op, name in _OPERATIONS.items()])
    return typed.select(
        *[F.col(f"`{name}`") for name in df.columns],
        *[F.col("__row")[field.name].alias(field.name) for field in row],
        operation.alias("_operation"),
        _order().alias("_order"),
        "_before",
        _malformed(row).alias("_malformed"),
    )


def _check(df: DataFrame, row: StructType, timestamps: str | None) -> None:
    missing = [name for name in _NEEDED if name not in df.columns]
    if missing:
        raise SchemaError(
            f"debezium needs column {missing[0]!r}: declare _stream STRING, _id STRING and "
            "_fields MAP<BINARY, BINARY> in the schema of readStream"
        )
    names = [*df.columns, *row.names, *_ADDED]
    twice = [name for name in names if [other.lower() for other in names].count(name.lower()) > 1]
    if twice:
        raise SchemaError(f"the result of debezium would have column {twice[0]!r} twice: rename or drop one of them")
    if timestamps is not None and timestamps not in _PER_SECOND:
        raise InvalidOptionError(f"timestamps={timestamps!r} must be one of {', '.join(map(repr, _PER_SECOND))}")


def _event_parts() -> list[Column]:
    """Return the parts of an event with `before` and `after`."""
    event = F.col("__event")
    is_delete = F.coalesce(event["op"] == "d", F.lit(False))
    of_rows = F.filter(F.col("__wrapped.schema.fields"), lambda field: field["field"].isin("after", "before"))
    has_no_row = event["op"].isNull() & (
        event["ddl"].isNotNull()
        | event["status"].isin("BEGIN", "END")
        | F.try_element_at("__keys", F.lit("serverName")).isNotNull()
    )
    return [
        event["op"].alias("__op"),
        F.when(is_delete, event["before"]).otherwise(event["after"]).alias("__image"),
        event["before"].alias("__before"),
        event["source"].alias("__source"),
        F.get(of_rows, F.lit(0))["fields"].alias("__kinds"),
        F.coalesce(F.col("__is_tombstone") | has_no_row, F.lit(False)).alias("__is_other"),
    ]


def _unwrapped_parts() -> list[Column]:
    """Return the same parts of an event that is a row."""

    def added(name: str) -> Column:
        return F.try_element_at("__event", F.lit(name))

    is_delete = F.col("__is_tombstone") | F.coalesce(added("__deleted") == "true", F.lit(False))
    operation = F.when(is_delete, F.lit("d")).when(F.col("__event").isNotNull(), F.coalesce(added("__op"), F.lit("u")))
    return [
        operation.alias("__op"),
        F.col("__event").alias("__image"),
        F.lit(None).cast(_TEXTS).alias("__before"),
        F.lit(None).cast(_TEXTS).alias("__source"),  # a tombstone has none, so entries have one order
        F.col("__wrapped.schema.fields").alias("__kinds"),
        F.lit(False).alias("__is_other"),
    ]


@dataclass(frozen=True)
class _Converter:
    """Converts texts into values of columns, null if they do not fit. unit: of times in events without a schema."""

    unit: Unit | None

    def value(self, text: Column, field: StructField) -> Column:
        """Return the value of a column."""
        target = field.dataType
        kind = F.get(F.filter("__kinds", lambda kind: kind["field"] == field.name), F.lit(0))
        is_number = text.rlike(_NUMBER)
        if isinstance(target, StringType):
            return text
        if isinstance(target, (StructType, ArrayType, MapType)):
            return F.from_json(text, target.simpleString())
        if isinstance(target, BinaryType):
            return F.try_to_binary(text, F.lit("base64"))
        if isinstance(target, DateType):
            return F.when(is_number, _date(text)).otherwise(text.try_cast(target))
        if isinstance(target, TimestampType):
            return F.when(is_number, self._moment(text, kind)).otherwise(text.try_cast(target))
        if isinstance(target, TimestampNTZType):
            # A number counts from 1970 in UTC, whatever the session's time zone is.
            seconds = F.unix_micros(self._moment(text, kind)).cast("decimal(20, 0)") / F.expr("1000000BD")
            since = F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'") + F.make_dt_interval(secs=seconds)
            return F.when(is_number, since).otherwise(text.try_cast(target))
        if isinstance(target, DecimalType):
            is_bytes = F.coalesce(kind["name"].endswith("data.Decimal"), F.lit(False))
            return F.when(is_bytes, _decimal(text, target, kind)).otherwise(text.try_cast(target))
        return text.try_cast(target)

    def _moment(self, text: Column, kind: Column) -> Column:
        """Return a time that is a number, in the unit that its type says."""
        by_kind = [F.when(kind["name"].rlike(name), _time(text, unit)) for unit, name in _TIMES.items()]
        bare = [] if self.unit is None else [F.when(kind["name"].isNull(), _time(text, self.unit))]
        return F.coalesce(*by_kind, *bare)


def _date(text: Column) -> Column:
    days = text.try_cast("int")
    return F.when(days.between(_FIRST // 86_400, _LAST // 86_400), F.date_from_unix_date(days))


def _time(text: Column, unit: Unit) -> Column:
    number, per_second = text.try_cast("bigint"), _PER_SECOND[unit]
    moments = {
        "ms": F.timestamp_millis(number),
        "us": F.timestamp_micros(number),
        "ns": F.timestamp_micros(F.floor(number / 1000).cast("bigint")),
    }
    lowest, highest = max(_FIRST * per_second, -(1 << 63)), min((_LAST + 1) * per_second, 1 << 63) - 1
    return F.when(number.between(lowest, highest), moments[unit])


def _decimal(text: Column, target: DecimalType, kind: Column) -> Column:
    """Return a decimal number that is base64 of its unscaled value, big-endian. Its scale must be the column's, and it
    may have 8 bytes."""
    digits = F.hex(F.try_to_binary(text, F.lit("base64")))
    is_short = F.length(digits).between(2, 16)
    unsigned = F.conv(digits, 16, 10).try_cast("decimal(20, 0)")
    borrowed = F.conv(F.rpad(F.lit("1"), F.length(digits) + 1, F.lit("0")), 16, 10).try_cast("decimal(20, 0)")
    modulus = F.when(F.length(digits) == 16, F.expr("18446744073709551616BD")).otherwise(borrowed)
    signed = F.when(F.left(digits, F.lit(1)) >= "8", unsigned - modulus).otherwise(unsigned)
    step = F.expr(f"{10**-target.scale:.{target.scale}f}BD")
    same_scale = F.coalesce(kind["parameters"]["scale"], F.lit("0")) == str(target.scale)
    is_exact = is_short & same_scale & F.lit(target.scale <= _LARGEST_SCALE)
    return F.when(is_exact, (signed * step).try_cast(target))


def _order() -> Column:
    """Return a text whose order is that of the changes of a key: the source's time and position, then the entry's ID.

    Debezium appends an event again after an error of the server, which may come after a later event."""

    def number(*names: str) -> Column:
        texts = [F.try_element_at("__source", F.lit(name)) for name in names]
        return F.lpad(F.coalesce(*texts, F.lit("0")), 20, "0")

    names = F.coalesce(*[F.try_element_at("__source", F.lit(name)) for name in ("file", "change_lsn")], F.lit(""))
    return F.concat_ws(
        "-",
        number("ts_ms"),
        names,
        number("lsn", "pos", "scn", "ord"),
        number("row", "event_serial_no"),
        F.lpad(F.substring_index("_id", "-", 1), 20, "0"),
        F.lpad(F.substring_index("_id", "-", -1), 20, "0"),
    )


def _malformed(row: StructType) -> Column:
    """Return why an event cannot be read, or the first column whose value does not fit."""
    is_operation = F.col("__op").isin(*_OPERATIONS)
    unfit = [
        F.when(
            F.col("__texts")[field.name].isNotNull() & F.col("__row")[field.name].isNull(),
            F.lit(f"column {field.name!r} does not fit {field.dataType.simpleString().upper()}"),
        )
        for field in row
    ]
    return F.coalesce(
        F.when(F.col("__value").isNull(), F.lit("the entry has neither fields key and value nor a single field")),
        F.when(~F.coalesce(is_operation, F.lit(False)), F.lit("the value is no change event of Debezium")),
        *unfit,
    )
