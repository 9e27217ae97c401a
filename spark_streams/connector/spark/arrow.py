"""Arrow between Spark and Python: schemas, functions of columns, rows. Timestamps are in UTC."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimestampType

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.spark.running_pyspark import takes_arrow_batches

# Since 4.2, Spark requires the time zone as an argument.
_TIMEZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the columns as an Arrow schema. Raises PySparkTypeError for a type that Spark does not pass to Python."""
    return to_arrow_schema(columns, **_TIMEZONE)


# -- a function of Arrow arrays as a function of columns: Spark has it since 4.1; before, each value is called alone ---

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


# -- Rows in the form that Spark takes from a Python source: Arrow record batches, or tuples ---------------------------


def rows_for_spark(batches: Iterator[pa.RecordBatch], arrow_batches: bool | None) -> Iterator[Any]:
    """Return the batches, or their rows as tuples. arrow_batches: the option; None: what this Spark takes."""
    if takes_arrow_batches() if arrow_batches is None else arrow_batches:
        return batches
    return (row for batch in batches for row in tuples_of(batch))


def tuples_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of a batch, with Python's values: datetime in UTC, Decimal, bytes, dict for a map."""
    columns = [_python_values(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    return zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)


def _python_values(name: str, column: pa.Array) -> list[Any]:
    try:
        values = column.to_pylist()
    except OverflowError:
        raise UnsupportedError(
            f"column {name!r} has a time outside the years 1 to 9999, which a tuple of Python cannot hold. Set "
            "arrowBatches=true if this Spark takes Arrow record batches, or read the column as STRING"
        ) from None
    return [_value(value, column.type) for value in values] if _has_map(column.type) else values


class _Map(dict[Any, Any]):
    """A map with a key twice, as an entry may have a name: all pairs are its `items`, which Spark takes."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def _value(value: Any, kind: pa.DataType) -> Any:
    """Return a value with dicts in place of the lists of pairs that Arrow returns for maps."""
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        pairs = [(_value(key, kind.key_type), _value(item, kind.item_type)) for key, item in value]
        values = dict(pairs)
        return values if len(values) == len(pairs) else _Map(pairs)
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    return [_value(item, kind.value_type) for item in value]
