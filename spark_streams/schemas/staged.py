"""A new column beside the others, by a function that gives a value and a reason."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.errors import SchemaError
from spark_streams.spark.arrow_function import ArrayFunction, arrow_function
from spark_streams.spark.sql_name import quoted

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
