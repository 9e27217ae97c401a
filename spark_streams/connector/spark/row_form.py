"""Rows in the form that Spark takes from a Python source: Arrow record batches, or tuples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_streams.connector.spark.running_pyspark import takes_arrow_batches

Row = tuple[Any, ...]


def rows_for_spark(batches: Iterator[pa.RecordBatch], arrow_batches: bool | None) -> Iterator[Any]:
    """Return the batches, or their rows as tuples. arrow_batches: the option; None: what this Spark takes."""
    if takes_arrow_batches() if arrow_batches is None else arrow_batches:
        return batches
    return (row for batch in batches for row in tuples_of(batch))


def tuples_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Iterate over the rows of a batch, with Python's values: datetime in UTC, Decimal, bytes, dict for a map."""
    columns = [_values(column, column.type) for column in batch.columns]
    return zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)


def _values(column: pa.Array, kind: pa.DataType) -> list[Any]:
    """Return the values of a column. Only a type that contains a map is converted value by value."""
    values: list[Any] = column.to_pylist()
    return [_value(value, kind) for value in values] if _has_map(kind) else values


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def _value(value: Any, kind: pa.DataType) -> Any:
    """Return a value with dicts in place of the lists of pairs that Arrow returns for maps."""
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        return {_value(key, kind.key_type): _value(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    return [_value(item, kind.value_type) for item in value]
