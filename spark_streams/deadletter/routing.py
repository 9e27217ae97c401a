"""Dead letters by the user's own rules: a DataFrame of a query is split into good rows and rows for the sink."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, MapType

from spark_streams.deadletter.envelope import FIELDS, MARK, MARK_FORM, NAMES, PREFIX
from spark_streams.errors import SchemaError
from spark_streams.task_context import micro_batch, micro_batch_of_driver

_NEEDED = ("_stream", "_id", "_fields")
_BYTES = MapType(BinaryType(), BinaryType()).simpleString()
_FORM = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
_MARK_NAME = f"X'{MARK.hex()}'"
_MARK_VALUE = "make_valid_utf8(cast(try_element_at(map_values(_fields), -1) AS STRING))"
_ENVELOPE = ", ".join(f"X'{field.hex()}'" for field in FIELDS)


class Routed(NamedTuple):
    """good: the rows that stay, with all their columns; letters: the dead letters, ready for the sink, a row each."""

    good: DataFrame
    letters: DataFrame


def route_dead_letters(
    df: DataFrame,
    condition: Column | str,
    reason: Column | str,
    *,
    stage: str = "query",
    group: str = "",
    consumer: str = "",
    error: Column | str = "",
    message: Column | str = "",
    at: Column | None = None,
) -> Routed:
    """Split rows of `format("rstream")`: those for which `condition` holds become dead letters.

    df: streaming or batch, with the metadata columns `_stream STRING`, `_id STRING` and `_fields MAP<BINARY, BINARY>`
    (and `_deliveries`, if dead letters shall tell it); condition: a column, or SQL; where it is null the row is good;
    reason, error, message: a text, or a column that gives one per row; stage, group, consumer: for the envelope; at:
    when it failed (default: now).

    `letters` has all original fields byte for byte in `_fields`, and the columns of the envelope. Write it with
    `format("rstream")` to the dead-letter stream: as a streaming query of its own, or within foreachBatch, there with
    option `transaction` and an `at` that a replay repeats (a column current_timestamp() of the streaming frame).
    Raises SchemaError where a metadata column is missing.
    """
    _check(df)
    dead = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
    # In a streaming query this is the batch's own time, which a replay repeats.
    moment = F.current_timestamp() if at is None else at
    now = F.date_format(F.to_utc_timestamp(moment, F.current_timezone()), _FORM)
    told = {
        **_of_entry(df, now),
        "group": F.lit(group),
        "consumer": F.lit(consumer),
        "stage": F.lit(stage),
        "reason": _text(reason),
        "error": _text(error),
        "message": _text(message),
    }
    envelope = [F.coalesce(told[name].cast("string"), F.lit("")).alias(f"{PREFIX}{name}") for name in NAMES]
    known = df.where(dead).withColumns({"_mark": F.expr(_mark()), "_batch": _batch(df)})
    known = known.withColumn("_past", F.coalesce("_mark", F.expr(_past())))
    return Routed(df.where(~dead), known.select(_original_fields().alias("_fields"), *envelope))


def _of_entry(df: DataFrame, now: Column) -> dict[str, Column]:
    """What the entry and its past say of a dead letter."""
    return {
        "stream": F.col("_stream"),
        "id": F.col("_id"),
        "query": F.col("_batch.query"),
        "batch": F.col("_batch.number"),
        "deliveries": F.col("_deliveries") if "_deliveries" in df.columns else F.lit(""),
        "first-failed": F.coalesce(F.nullif(_of_mark(2), F.lit("")), now),
        "last-failed": now,
        "redrives": F.coalesce(_of_mark(1), F.lit("0")),
        "previous": _of_mark(3),
    }


def _original_fields() -> Column:
    """Without the mark of an entry that was sent back."""
    unmarked = F.expr(f"map_filter(_fields, (name, value) -> name != {_MARK_NAME})")
    return F.when(F.col("_mark").isNull(), F.col("_fields")).otherwise(unmarked)


def _text(value: Column | str) -> Column:
    return F.lit(value) if isinstance(value, str) else value


def _mark() -> str:
    """The mark of an entry that was sent back, null for others: it is the last field."""
    return (
        f"CASE WHEN try_element_at(map_keys(_fields), -1) = {_MARK_NAME} AND {_MARK_VALUE} RLIKE '{MARK_FORM}' "
        f"THEN {_MARK_VALUE} END"
    )


def _of_mark(part: int) -> Column:
    return F.regexp_extract(F.col("_past"), MARK_FORM, part)


def _past() -> str:
    """The same of an entry that is a dead letter itself."""
    told = [
        f"make_valid_utf8(cast(try_element_at(_fields, X'{(PREFIX + name).encode().hex()}') AS STRING))"
        for name in ("redrives", "first-failed", "previous")
    ]
    joined = f"concat_ws(' ', {', '.join(told)})"
    is_dead_letter = f"size(array_except(array({_ENVELOPE}), map_keys(_fields))) = 0"
    return f"CASE WHEN {is_dead_letter} AND {joined} RLIKE '{MARK_FORM}' THEN {joined} END"


def _batch(df: DataFrame) -> Column:
    """The micro-batch: within foreachBatch the driver knows it, elsewhere only the tasks do (FACTS S8)."""
    if not df.isStreaming:
        query, number = micro_batch_of_driver(df.sparkSession) or ("", "")
        return F.struct(F.lit(query).alias("query"), F.lit(str(number)).alias("number"))

    def look() -> tuple[str, str]:  # for dead rows only
        batch = micro_batch()
        return ("", "") if batch is None else (batch.query, str(batch.number))

    found: Column = F.udf(look, "query STRING, number STRING", useArrow=False).asNondeterministic()()
    return found


def _check(df: DataFrame) -> None:
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    missing = [name for name in _NEEDED if name not in types]
    if missing:
        raise SchemaError(
            f"dead letters cannot be told apart without column {', '.join(missing)}: declare _stream STRING, "
            "_id STRING and _fields MAP<BINARY, BINARY> in the source's schema, and keep them up to route_dead_letters"
        )
    if types["_fields"] != _BYTES:
        raise SchemaError(
            f"column '_fields' is {types['_fields']}, which does not hold every field byte for byte: "
            "declare it MAP<BINARY, BINARY>"
        )
