"""Change events of Debezium Server's Redis sink as typed rows: DataFrame expressions only, so also over Connect.

    extended   key {"id": 1}   value {"before": …, "after": …, "source": …, "op": "u"}   and headers as further fields
    compact    {"id": 1} {"before": …}                                the key is the name of the only field

Key and value are JSON of Kafka Connect's converter, with or without its envelope {"schema": …, "payload": …}. A null
key or value is the text `default`. The schema tells the unit of a time and the scale of a decimal number
(docs/internals/facts.md, D1 to D5).

An event is a text that anyone may have written: every conversion here returns null for what it cannot convert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.connector.cdc.columns import Columns
from spark_streams.connector.cdc.exact_json import TEXTS, mark_numbers, name_in_json, name_members, read_json
from spark_streams.connector.cdc.order import place
from spark_streams.connector.cdc.sql import quoted
from spark_streams.connector.cdc.times import Unit
from spark_streams.connector.cdc.unavailable import PLACEHOLDER, forms_of
from spark_streams.connector.cdc.values import FIELD, Converter, Decimals
from spark_streams.connector.errors import InvalidOptionError, SchemaError

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
    _check(df, row, unavailable, timestamps=(timestamps, get_args(Unit)), decimals=(decimals, get_args(Decimals)))
    is_case_sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    columns = Columns(row, Converter(timestamps, decimals), is_case_sensitive)
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


def _check(df: DataFrame, row: StructType, unavailable: str, **words: tuple[str | None, tuple[str, ...]]) -> None:
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
