"""A function of Arrow arrays as a function of columns. Spark has it since 4.1; before, each value is called alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimestampType

from spark_streams.connector.spark.arrow_schema import arrow_schema

ArrayFunction = Callable[[pa.Array], pa.Array]


def arrow_function(function: ArrayFunction, takes: DataType, returns: StructType) -> Callable[[Column], Column]:
    """Return a function of a column of type `takes`, which Spark evaluates once for each row."""
    if hasattr(F, "arrow_udf"):

        def of_array(values: pa.Array) -> pa.Array:
            return function(values)

        of_arrays: Callable[[Column], Column] = F.arrow_udf(of_array, returns).asNondeterministic()
        return of_arrays

    def of_one(value: Any) -> object:
        kind = arrow_schema(StructType([StructField("value", takes)])).field(0).type
        array = pa.array([_as_arrow_takes(value, takes)], kind)
        return function(array).to_pylist(maps_as_pydicts="strict")[0]

    of_values: Callable[[Column], Column] = F.udf(of_one, returns, useArrow=False).asNondeterministic()
    return of_values


def _as_arrow_takes(value: Any, kind: DataType) -> Any:
    """Return a value that Spark has given to a function of Python. Its timestamps are local times there."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {one.name: _as_arrow_takes(part, one.dataType) for one, part in zip(kind, value, strict=True)}
    if isinstance(kind, ArrayType):
        return [_as_arrow_takes(part, kind.elementType) for part in value]
    if isinstance(kind, MapType):
        return [(key, _as_arrow_takes(part, kind.valueType)) for key, part in value.items()]
    if isinstance(kind, TimestampType):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value
