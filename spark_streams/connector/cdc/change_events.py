"""Change events of Debezium Server's Redis sink as typed rows: DataFrame expressions only, so also over Connect.

    extended   key {"id": 1}   value {"before": …, "after": …, "source": …, "op": "u"}   and headers as further fields
    compact    {"id": 1} {"before": …}                                the key is the name of the only field

Key and value are JSON of Kafka Connect's converter, with or without its envelope {"schema": …, "payload": …}. A null
key or value is the text `default`. The schema tells the unit of a time and the scale of a decimal number
(docs/internals/facts.md, D1 to D5).

An event is a text that anyone may have written: every conversion here returns null for what it cannot convert.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_streams.connector.cdc.event_values import (
    FIELD,
    TEXTS,
    Converter,
    Decimals,
    Unit,
    literal,
    mark_numbers,
    name_in_json,
    name_members,
    number_in_json,
    read_json,
)
from spark_streams.connector.cdc.order import place
from spark_streams.connector.errors import InvalidOptionError, SchemaError
from spark_streams.connector.spark.running_pyspark import quoted

# -- the placeholder of a value that is not in the event ---------------------------------------------------------------

# A large value of PostgreSQL that has not changed (TOAST), or a large object of Oracle. The placeholder is a text.
# Debezium writes it in the form of the column's type (facts.md, D5).
PLACEHOLDER = "__debezium_unavailable_value"


def forms_of(placeholder: str) -> tuple[str, ...]:
    """Return all values (of event_values.py) that stand for a value that is not in the event."""
    data = placeholder.encode()
    text = name_in_json(placeholder)
    texts = (text, base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), data.hex())
    as_uuid = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
    single_bytes = [base64.b64encode(bytes([byte])).decode() for byte in data]
    containers = (
        *([element] for element in (*texts, as_uuid)),
        [number_in_json(str(byte)) for byte in data],
        [number_in_json(f"{byte}.0") for byte in data],
        single_bytes,  # decimals
        [{"scale": number_in_json("0"), "value": byte} for byte in single_bytes],
        {text: text},  # hstore
    )
    in_json = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in containers]
    hstore_text = json.dumps({text: text}, ensure_ascii=False)  # with a space after the colon
    return tuple(dict.fromkeys([*texts, *in_json, hstore_text]))


# -- the columns of a table: from the members of an event to typed values ----------------------------------------------


@dataclass(frozen=True)
class EventColumns:
    """row: the columns; is_case_sensitive: whether names that differ in case are different.

    Values and kinds are structs with a field for each column. A value is a text of event_values.py.
    """

    row: StructType
    converter: Converter
    is_case_sensitive: bool

    def values(self, *maps: str) -> Column:
        """Return the values: of the first of these maps that has one."""
        values = [
            f"coalesce({', '.join(f'try_element_at({members}, {_name(field)})' for members in maps)}) "
            f"AS {quoted(field.name)}"
            for field in self.row
        ]
        return F.expr(f"struct({', '.join(values)})")

    def named(self, names: str) -> Column:
        """Return the names of those columns whose members are in this array."""
        columns = [
            f"CASE WHEN array_contains({names}, {_name(field)}) THEN {literal(field.name)} END" for field in self.row
        ]
        return F.expr(f"array_compact(array({', '.join(columns)}))")

    def kinds(self, fields: str) -> Column:
        """Return the parts of the event's schema that describe the columns. fields: the array of all parts."""

        def kind(field: StructField) -> str:
            parts_of_name = [f"filter({fields}, part -> part.field = {_name(field)})"]
            if not self.is_case_sensitive:
                parts_of_name.append(f"filter({fields}, part -> lower(part.field) = lower({_name(field)}))")
            return f"coalesce({', '.join(f'get({parts}, 0)' for parts in parts_of_name)}) AS {quoted(field.name)}"

        return F.expr(f"struct({', '.join(map(kind, self.row))})")

    def typed(self, values: str, kinds: str) -> Column:
        """Return typed values, null if they do not fit."""

        def typed(field: StructField) -> str:
            name = quoted(field.name)
            return f"{self.converter.value(f'{values}.{name}', field.dataType, f'{kinds}.{name}')} AS {name}"

        return F.expr(f"struct({', '.join(map(typed, self.row))})")

    def malformed(self, values: str, typed: str, kinds: str) -> Column:
        """Return why the first value that does not fit does not; null if all fit."""

        def reason(field: StructField) -> str:
            name = quoted(field.name)
            is_unfit = f"{values}.{name} IS NOT NULL AND {typed}.{name} IS NULL"
            return f"WHEN {is_unfit} THEN {self.converter.reason(f'{values}.{name}', field, f'{kinds}.{name}')}"

        return F.expr(f"CASE {' '.join(map(reason, self.row))} END")


def _name(field: StructField) -> str:
    return literal(name_in_json(field.name))


# -- an event ----------------------------------------------------------------------------------------------------------

_NEEDED = ("_stream", "_id", "_fields")
_ADDED = ("_operation", "_order", "_before", "_unchanged", "_malformed")
_FIELDS_OF_ROW = f"ARRAY<STRUCT<{FIELD}>>"
_SCHEMA_OF_ROW = f"STRUCT<fields: {_FIELDS_OF_ROW}>"
_SCHEMA_OF_EVENT = f"STRUCT<fields: ARRAY<STRUCT<{FIELD}, fields: {_FIELDS_OF_ROW}>>>"
_EVENT = (
    f"op: STRING, before: {TEXTS}, after: {TEXTS}, source: {TEXTS}, ddl: STRING, tableChanges: STRING, status: STRING"
)
_KEY = f"STRUCT<schema: {_SCHEMA_OF_ROW}, payload: {TEXTS}>"
_ENVELOPE = ("payload", "schema")  # the members of the converter's envelope
_OPERATIONS = {"r": "read", "c": "insert", "u": "update", "d": "delete", "t": "truncate", "m": "message"}
_OF_ROWS = ("r", "c", "u", "d")
_HEARTBEAT = "__debezium-heartbeat"


def debezium(
    df: DataFrame,
    schema: str | StructType,
    *,
    unwrapped: bool = False,
    timestamps: Unit | None = None,
    decimals: Decimals | None = None,
    null: str = "default",
    unavailable: str = PLACEHOLDER,
) -> DataFrame:
    """Convert change events that Debezium Server has written to streams into rows.

    The result has the columns of `df` and those of `schema`, and `_operation` (`read`, `insert`, `update`, `delete`,
    `truncate`, `message`), `_order` (a text: of the events of a key, the greatest is the latest), `_before` (the row
    before the change), `_unchanged` (names of columns whose value is not in the event, because it is large and has not
    changed) and `_malformed` (why the event or a value cannot be read; null if it can). A delete has the values of the
    row before it, and of its key. Heartbeats, schema changes, marks of transactions, and the tombstones that follow
    deletes are left out.

    Args:
        df: Streaming or batch frame of `format("rstream")` with the columns `_stream STRING`, `_id STRING` and
            `_fields MAP<BINARY, BINARY>`.
        schema: Columns of the table, as DDL or StructType. A name that differs from the event's only in case is the
            same, unless `spark.sql.caseSensitive` is true.
        unwrapped: The events are rows: Debezium's transformation ExtractNewRecordState has unwrapped them. If it adds
            `__op` or `__deleted`, these tell the operation; otherwise it is `update`. A tombstone is a delete of its
            key. `_order` is then the order of the entries.
        timestamps: Unit of times that are numbers, in events without a schema. Without it they are malformed.
        decimals: Form of decimal numbers that are JSON strings, in events without a schema: `text` (`"12.50"`) or
            `base64` (bytes, with the scale of the column). Without it, a string that may be both is malformed.
        null: Text for a null key or value, as Debezium's `debezium.sink.redis.null.key` and `null.value` set it.
        unavailable: Text for a value that is not in the event, as Debezium's `unavailable.value.placeholder` sets it.

    Returns:
        A row for each event.

    Raises:
        SchemaError: A column is missing, or a name is used twice.
        InvalidOptionError: An argument has an unknown value.
    """
    row = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(row, StructType):
        raise SchemaError(f"schema {schema!r} names no columns: write it as 'id BIGINT, name STRING'")
    _check_arguments(
        df, row, unavailable, timestamps=(timestamps, get_args(Unit)), decimals=(decimals, get_args(Decimals))
    )
    is_case_sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    columns = EventColumns(row, Converter(timestamps, decimals), is_case_sensitive)
    # Not a filter: Spark would evaluate it before, and read each JSON text once more for it.
    is_row = F.when(~F.col("__is_other"), F.array(F.lit(True)))
    staged = _events(df, unwrapped, null).select("*", F.explode(is_row).alias("__is_row"))
    names = [name_in_json(name) for name in row.names]
    members = ("__image", "__before", "__keys")
    named = staged.withColumns({name: name_members(F.col(name), names, is_case_sensitive) for name in members})
    forms = forms_of(unavailable)
    without_placeholders = named.select(
        "*",
        F.map_keys(F.map_filter("__image", lambda _, value: value.isin(*forms))).alias("__unavailable"),
        F.transform_values("__image", lambda _, value: F.when(~value.isin(*forms), value)).alias("__known"),
        F.transform_values("__before", lambda _, value: F.when(~value.isin(*forms), value)).alias("__known_before"),
    )
    values = without_placeholders.select(
        "*",
        columns.values("__known", "__keys").alias("__values"),
        columns.values("__known_before").alias("__values_before"),
        columns.kinds("__kinds").alias("__kinds_of"),
    )
    typed = values.select(
        "*",
        columns.typed("__values", "__kinds_of").alias("__row"),
        F.when(F.col("__before").isNotNull(), columns.typed("__values_before", "__kinds_of")).alias("_before"),
        place().alias("__place"),
    )
    operation = F.coalesce(*[F.when(F.col("__op") == op, F.lit(name)) for op, name in _OPERATIONS.items()])
    return typed.select(
        *[F.col(quoted(name)) for name in df.columns],
        *[F.col("__row")[field.name].alias(field.name) for field in row],
        operation.alias("_operation"),
        F.col("__place.order").alias("_order"),
        "_before",
        F.coalesce(columns.named("__unavailable"), F.array().cast("ARRAY<STRING>")).alias("_unchanged"),
        F.coalesce(_malformed(names), columns.malformed("__values", "__row", "__kinds_of")).alias("_malformed"),
    )


def _check_arguments(
    df: DataFrame, row: StructType, unavailable: str, **words: tuple[str | None, tuple[str, ...]]
) -> None:
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
    for argument, (word, valid) in words.items():
        if word is not None and word not in valid:
            raise InvalidOptionError(f"{argument}={word!r} must be one of {', '.join(map(repr, valid))}")
    if not unavailable:
        raise InvalidOptionError("unavailable must not be empty: write the text of unavailable.value.placeholder")


def _events(df: DataFrame, unwrapped: bool, null: str) -> DataFrame:
    """Return the events with their parts: __op, __image, __before, __source, __keys, __kinds, __is_other."""
    fields = F.col("_fields").cast(TEXTS)

    def field(name: str) -> Column:  # the last one, if it occurs twice
        having = F.filter(F.map_entries(fields), lambda pair: pair["key"] == name)
        return F.try_element_at(having["value"], F.lit(-1))

    is_extended, is_compact = F.map_contains_key(fields, "value"), F.size(fields) == 1
    texts = df.where(~F.col("_stream").startswith(_HEARTBEAT)).select(
        "*",
        F.when(is_extended, field("key")).when(is_compact, F.get(F.map_keys(fields), F.lit(0))).alias("__key"),
        F.when(is_extended, field("value")).when(is_compact, F.get(F.map_values(fields), F.lit(0))).alias("__value"),
    )
    marked = texts.select(
        "*", mark_numbers(F.col("__key")).alias("__key_json"), mark_numbers(F.col("__value")).alias("__json")
    )
    schema, payload = (_SCHEMA_OF_ROW, TEXTS) if unwrapped else (_SCHEMA_OF_EVENT, f"STRUCT<{_EVENT}>")
    wrapped = marked.select(
        "*",
        F.coalesce(F.col("__value") == null, F.lit(False)).alias("__is_tombstone"),
        _envelope("__json", f"STRUCT<schema: {schema}, payload: {payload}>").alias("__wrapped"),
        _envelope("__key_json", _KEY).alias("__wrapped_key"),
    )
    parsed = wrapped.select(
        "*",
        F.coalesce(F.col("__wrapped.payload"), F.expr(read_json("__json", payload))).alias("__event"),
        F.coalesce(F.col("__wrapped_key.payload"), F.expr(read_json("__key_json", TEXTS))).alias("__keys"),
    )
    return parsed.select("*", *(_unwrapped_parts() if unwrapped else _event_parts()))


def _envelope(marked: str, schema: str) -> Column:
    """Return the converter's envelope, null if it is none: a row may have a column `payload`."""
    members = F.array_sort(F.array_distinct(F.json_object_keys(marked)))
    return F.when(members == F.array(*map(F.lit, _ENVELOPE)), F.expr(read_json(marked, schema)))


def _kinds(of_value: Column) -> Column:
    """Return the fields of the event's schema and of its key's."""
    of_key = F.col("__wrapped_key.schema.fields")
    return F.coalesce(F.concat(of_value, of_key), of_value, of_key)


def _event_parts() -> list[Column]:
    """Return the parts of an event with `before` and `after`."""
    event = F.col("__event")
    is_delete = F.coalesce(event["op"] == "d", F.lit(False))
    of_rows = F.filter(F.col("__wrapped.schema.fields"), lambda field: field["field"].isin("after", "before"))
    has_no_row = event["op"].isNull() & (
        event["ddl"].isNotNull()
        | event["tableChanges"].isNotNull()  # of SQL Server and Db2 without `ddl`
        | event["status"].isin("BEGIN", "END")
        | F.try_element_at("__keys", F.lit("serverName")).isNotNull()
    )
    return [
        event["op"].alias("__op"),
        F.when(is_delete, event["before"]).otherwise(event["after"]).alias("__image"),
        event["before"].alias("__before"),
        event["source"].alias("__source"),
        _kinds(F.get(of_rows, F.lit(0))["fields"]).alias("__kinds"),
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
        F.lit(None).cast(TEXTS).alias("__before"),
        F.lit(None).cast(TEXTS).alias("__source"),  # a tombstone has none, so entries have one order
        _kinds(F.col("__wrapped.schema.fields")).alias("__kinds"),
        F.lit(False).alias("__is_other"),
    ]


def _malformed(names: Sequence[str]) -> Column:
    """Return why an event cannot be read; null if it can. names: of the columns, as members of a row."""
    is_operation = F.coalesce(F.col("__op").isin(*_OPERATIONS), F.lit(False))

    def has_columns(members: str) -> Column:
        columns = F.array(*map(F.lit, names)).cast("ARRAY<STRING>")
        return F.coalesce(F.arrays_overlap(F.map_keys(members), columns), F.lit(False))

    is_of_row = F.col("__op").isin(*_OF_ROWS)
    has_row = has_columns("__image") | ((F.col("__op") == "d") & has_columns("__keys"))
    return F.coalesce(
        F.when(F.col("__value").isNull(), F.lit("the entry has neither fields key and value nor a single field")),
        F.when(~is_operation, F.lit("the value is not a change event of Debezium")),
        F.when(
            is_of_row & ~has_row,
            F.when(F.col("__image").isNull(), "the event has no row").otherwise("the row has no column of the schema"),
        ),
        F.col("__place.wrong"),
    )
