"""Dead letters by the user's rules: a DataFrame of a query is split into good rows and dead letters for the sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, MapType

from spark_streams.connector.deadletter.envelope import FIELDS, MARK, MARK_FORM, NAMES, ORIGIN, PREFIX
from spark_streams.connector.errors import InvalidOptionError, SchemaError
from spark_streams.connector.keys import retry_stream
from spark_streams.connector.options.parsers import delays
from spark_streams.connector.spark.worker import micro_batch, micro_batch_of_driver

_NEEDED = ("_stream", "_id", "_fields")
_RETRY_COLUMNS = {"_attempt": "INT", "_first_failed": "TIMESTAMP"}
TO = "_to"  # column with the retry stream of a dead letter
_BYTES = MapType(BinaryType(), BinaryType()).simpleString()
_FORM = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
_MARK_NAME = f"X'{MARK.hex()}'"
_MARK_VALUE = "make_valid_utf8(cast(try_element_at(map_values(_fields), -1) AS STRING))"
_ENVELOPE = ", ".join(f"X'{field.hex()}'" for field in FIELDS)
# The mark of a redriven entry, which is its last field; null for other entries.
_MARK = (
    f"CASE WHEN try_element_at(map_keys(_fields), -1) = {_MARK_NAME} AND {_MARK_VALUE} RLIKE '{MARK_FORM}' "
    f"THEN {_MARK_VALUE} END"
)
# Columns of the envelope that come from the entry, its batch and its mark.
_OF_MARK = {part: f"regexp_extract(_past, '{MARK_FORM}', {part})" for part in (1, 2, 3)}
_OF_ENTRY = {
    "stream": "_stream",
    "id": "_id",
    "query": "_batch.query",
    "batch": "_batch.number",
    "first-failed": f"coalesce(nullif({_OF_MARK[2]}, ''), `{PREFIX}first-failed`)",
    "redrives": f"coalesce({_OF_MARK[1]}, '0')",
    "previous": _OF_MARK[3],
}
_UNMARKED = f"map_filter(_fields, (name, value) -> name != {_MARK_NAME})"
_ORIGINAL_FIELDS = f"CASE WHEN _mark IS NULL THEN _fields ELSE {_UNMARKED} END AS _fields"


class Routed(NamedTuple):
    """Result of `route_dead_letters`.

    Attributes:
        good: Rows that stay, with all their columns.
        letters: Dead letters, one row each, ready for the sink.
    """

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
    retry_delay: str = "",
) -> Routed:
    """Split rows of `format("rstream")`: rows for which `condition` holds become dead letters.

    Write `letters` with `format("rstream")` to the dead-letter stream, by another streaming query or within
    `foreachBatch`. Within `foreachBatch`, set option `transaction`, and an `at` that a replay repeats: a column
    `current_timestamp()` of the streaming frame. A dead letter has all original fields, byte for byte, in `_fields`,
    and the columns of the envelope.

    With `retry_delay` the dead letters also have a column `_to`. It names the stream in which the entry waits for its
    next retry. It is null if no retry is left. Set options `streamColumn="_to"` and `stream`, and no option that trims.

    Args:
        df: Streaming or batch frame with the metadata columns `_stream STRING`, `_id STRING` and
            `_fields MAP<BINARY, BINARY>`; also `_deliveries` to keep it in dead letters. With `retry_delay` also
            `_attempt INT` and `_first_failed TIMESTAMP`.
        condition: Column or SQL. A row for which it is null is good.
        reason: Text, or a column with a text for each row.
        stage: Text for the envelope.
        group: Consumer group for the envelope. With `retry_delay` it is the group of the source.
        consumer: Consumer for the envelope.
        error: Class of the error: text or column.
        message: Message of the error: text or column.
        at: Time of the failure. Default: now.
        retry_delay: The value of the source's option `retryDelay`, if it has one.

    Returns:
        The good rows and the dead letters.

    Raises:
        SchemaError: A metadata column is missing.
        InvalidOptionError: `retry_delay` is not valid, or `group` is missing with it.
    """
    retries = _retries(retry_delay, group)
    _check(df, retries)
    dead = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
    # In a streaming query this is the batch's own time, which a replay repeats.
    now = _utc(F.current_timestamp() if at is None else at)
    times = {"first-failed": F.coalesce(_utc("_first_failed"), now) if retries else now, "last-failed": now}
    texts = {"group": group, "consumer": consumer, "stage": stage, "reason": reason, "error": error, "message": message}
    given = {
        f"{PREFIX}{name}": F.lit(value) if isinstance(value, str) else value
        for name, value in {**times, **texts}.items()
    }
    of_batch = {"_mark": F.expr(_MARK), "_batch": _batch(df), **_retry_stream(group, retries)}
    dead_rows = df.where(dead).withColumns({**given, **of_batch})
    dead_rows = dead_rows.withColumn("_past", F.expr(f"coalesce(_mark, {_past()})"))
    letters = dead_rows.selectExpr(*([TO] if retries else []), _ORIGINAL_FIELDS, *_envelope(df, retries))
    origin = F.col(f"`{PREFIX}stream`").alias(f"{PREFIX}stream", metadata={ORIGIN: True})  # for sink.feedback
    letters = letters.withColumn(f"{PREFIX}stream", origin)
    return Routed(df.where(~dead), letters)


def _retries(retry_delay: str, group: str) -> int:
    """Return how often an entry is retried. Raises InvalidOptionError."""
    if not retry_delay:
        return 0
    try:
        count = len(delays(retry_delay))
    except ValueError as error:
        raise InvalidOptionError(f"retry_delay={retry_delay!r} {error}") from None
    if not group:
        raise InvalidOptionError(
            "retry_delay needs group: entries that wait are returned to the source's group. Set group to it"
        )
    return count


def _retry_stream(group: str, retries: int) -> dict[str, Column]:
    """Return keys.retry_stream as a column; null if no retry is left. Without retries there is none."""
    if not retries:
        return {}
    stream = F.col("_stream")
    tag = F.regexp_extract(stream, r"^[^{]*\{([^}]+)\}", 1)
    no_tag = F.raise_error(
        F.concat(F.lit("retryDelay: entries of stream '"), stream, F.lit("' cannot wait for a retry by a rule: a name "
        "with '}' needs a hash tag, such as {x}"))
    )  # fmt: skip
    where = (
        F.when(tag != "", F.concat(F.lit("{"), tag, F.lit("}:"), stream))
        .when(F.contains(stream, F.lit("}")), no_tag.cast("string"))
        .otherwise(F.concat(F.lit("{"), stream, F.lit("}")))
    )
    # The parts of the name before and after the stream.
    before, behind = retry_stream("x", group, 0).removesuffix("0").split("{x}")
    name = F.concat(F.lit(before), where, F.lit(behind), F.col("_attempt").cast("string"))
    return {TO: F.when(F.col("_attempt") <= retries, name)}


def _envelope(df: DataFrame, retries: int) -> Iterator[str]:
    """Yield the columns of the envelope as SQL: one text takes fewer calls of the JVM than its parts."""
    deliveries = "_deliveries" if "_deliveries" in df.columns else "''"
    sources = {**_OF_ENTRY, "deliveries": "_attempt" if retries else deliveries}
    for name in NAMES:
        source = sources.get(name, f"`{PREFIX}{name}`")
        yield f"coalesce(cast({source} AS STRING), '') AS `{PREFIX}{name}`"


def _utc(time: Column | str) -> Column:
    """Return a timestamp as an envelope has it."""
    return F.date_format(F.to_utc_timestamp(time, F.current_timezone()), _FORM)


def _past() -> str:
    """Return the same for an entry that is a dead letter itself."""
    parts = [
        f"make_valid_utf8(cast(try_element_at(_fields, X'{(PREFIX + name).encode().hex()}') AS STRING))"
        for name in ("redrives", "first-failed", "previous")
    ]
    joined = f"concat_ws(' ', {', '.join(parts)})"
    is_dead_letter = f"size(array_except(array({_ENVELOPE}), map_keys(_fields))) = 0"
    return f"CASE WHEN {is_dead_letter} AND {joined} RLIKE '{MARK_FORM}' THEN {joined} END"


def _batch(df: DataFrame) -> Column:
    """Return the micro-batch: within foreachBatch the driver knows it, otherwise only the tasks do (FACTS S8)."""
    if not df.isStreaming:
        of_driver = micro_batch_of_driver(df.sparkSession)
        query, number = ("", "") if of_driver is None else (of_driver.query, str(of_driver.number))
        return F.struct(F.lit(query).alias("query"), F.lit(number).alias("number"))

    def fetch_batch() -> tuple[str, str]:  # for dead rows only
        batch = micro_batch()
        return ("", "") if batch is None else (batch.query, str(batch.number))

    batch: Column = F.udf(fetch_batch, "query STRING, number STRING", useArrow=False).asNondeterministic()()
    return batch


def _check(df: DataFrame, retries: int) -> None:
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    missing = [name for name in _NEEDED if name not in types]
    if missing:
        raise SchemaError(
            f"dead letters need column {', '.join(missing)}, which the rows do not have. Declare _stream STRING, "
            "_id STRING and _fields MAP<BINARY, BINARY> in the source's schema, and keep them up to route_dead_letters"
        )
    missing_columns = [name for name in _RETRY_COLUMNS if name not in types] if retries else []
    if missing_columns:
        raise SchemaError(
            f"retries need column {', '.join(missing_columns)}, which the rows do not have. Declare "
            f"{', '.join(f'{name} {kind}' for name, kind in _RETRY_COLUMNS.items())} in the source's schema, and keep "
            "them up to route_dead_letters"
        )
    if types["_fields"] != _BYTES:
        raise SchemaError(
            f"column '_fields' is {types['_fields']}, which does not hold every field byte for byte. Declare it "
            "MAP<BINARY, BINARY>"
        )
