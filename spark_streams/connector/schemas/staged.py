"""A new column beside the others, by a function that gives a value and a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.connector.errors import RStreamError, SchemaError
from spark_streams.connector.spark.arrow import ArrayFunction, arrow_function
from spark_streams.connector.spark.running_pyspark import quoted

VALUE, REASON = "value", "reason"


def with_staged(
    df: DataFrame, source: str, target: str, reason: str, function: ArrayFunction, returns: StructType
) -> DataFrame:
    """Return the frame with column `target` of the function's values, and `reason` of its reasons, if it has a name.

    Spark calls the function once for each row.
    """
    takes = df.schema[source].dataType
    made = arrow_function(function, takes, returns)(F.col(quoted(source)))
    name = "__made"
    while name in df.columns:
        name += "_"
    staged = df.select("*", made.alias(name))
    value, why = F.col(f"{name}.{VALUE}").alias(target), F.col(f"{name}.{REASON}").alias(reason or REASON)
    kept = [value if one == target else F.col(quoted(one)) for one in df.columns]
    return staged.select(*kept, *([] if target in df.columns else [value]), *([why] if reason else []))


def check_added(function: str, df: DataFrame, source: str, target: str, reason: str) -> None:
    """Raise SchemaError if the result would have a column twice. source: the column that the function reads."""
    added = [target.lower()] * (target != source) + [reason.lower()] * bool(reason)
    names = [name.lower() for name in df.columns] + added
    twice = [name for name in added if names.count(name) > 1]
    if twice:
        raise SchemaError(f"the result of {function} would have column {twice[0]!r} twice: choose another name")


def staged_array(
    values: Iterable[Any],
    convert: Callable[[Any], Any],
    kind: pa.DataType,
    why_not: Callable[[Exception], str],
    error_of: Callable[[str], RStreamError] | None,
) -> pa.Array:
    """Return structs of a converted value and a reason. A null stays null, without a reason.

    why_not: the reason for what `convert` raises; error_of: the error of the first reason, None: there is none.
    """
    converted: list[Any] = []
    reasons: list[str | None] = []
    for value in values:
        result, why = None, None
        if value is not None:
            try:
                result = convert(value)
            except RStreamError:
                raise
            except Exception as error:  # noqa: BLE001 - a value that does not fit, or what a format's package raises
                why = why_not(error)
        if why is not None and error_of is not None:
            raise error_of(why)
        converted.append(result)
        reasons.append(why)
    return pa.StructArray.from_arrays([pa.array(converted, kind), pa.array(reasons, pa.string())], [VALUE, REASON])
