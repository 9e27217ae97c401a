"""Types of columns that a Python package writes as they are. Others are refused before the table is created.

| package | not written | because |
|---|---|---|
| both | VARIANT | the first start creates a struct of bytes, which no later start takes |
| | intervals, TIME | the package fails |
| deltalake | STRUCT with fields `a` and `A` | names of Delta's columns are the same in upper and lower case |
| pyiceberg | ARRAY<STRUCT<…>>, MAP<…, STRUCT<…>> | it writes a null as an empty one |
| | VOID | the format has no such type |

Measured with deltalake 1.6, pyiceberg 0.12 and Spark 4.3 (tests/legs/recipes/test_column_types.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.output.formats import DELTALAKE, PYICEBERG
from spark_streams.jobs.schema.columns import sql_type

_BOTH: tuple[type[DataType], ...] = (
    *(BooleanType, IntegralType, FractionalType, DecimalType, StringType, CharType, VarcharType, BinaryType),
    *(DateType, TimestampType, TimestampNTZType, ArrayType, MapType, StructType),
)
_WRITTEN: dict[str, tuple[type[DataType], ...]] = {DELTALAKE: (*_BOTH, NullType), PYICEBERG: _BOTH}


def check_column_types(where: str, kind: str, rows: StructType, table: StructType) -> None:
    """Raise ConfigError for a column that the format's package does not write as it is.

    where: the table's settings; table: its columns after the first write, among them those that the rows lack.
    """
    if kind not in _WRITTEN:
        return
    for field in rows:
        for part in _parts(field.dataType):
            if not isinstance(part, _WRITTEN[kind]):
                _refuse(where, kind, field, f"cannot write {sql_type(part)}")
    for field in table:
        for part in _parts(field.dataType):
            if reason := _REASONS[kind](part):
                _refuse(where, kind, field, reason)


def _refuse(where: str, kind: str, field: StructField, reason: str) -> None:
    raise ConfigError(
        f"{where}.format {kind!r}: column {field.name!r} is {sql_type(field.dataType)}, and {kind} {reason}; write the "
        f"column as a STRING ({_as_text(field)}), leave it out, or set another format"
    )


def _as_text(field: StructField) -> str:
    is_nested = field.dataType.simpleString().startswith(("array<", "map<", "struct<", "variant"))
    name = quoted(field.name)
    return f"in SQL: to_json({name})" if is_nested else f"in SQL: CAST({name} AS STRING)"


def _parts(kind: DataType) -> Iterator[DataType]:
    """Yield a type and all types in it."""
    yield kind
    if isinstance(kind, ArrayType):
        yield from _parts(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _parts(kind.keyType)
        yield from _parts(kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind:
            yield from _parts(field.dataType)


def _empty_for_null(part: DataType) -> str:
    inner = part.elementType if isinstance(part, ArrayType) else part.valueType if isinstance(part, MapType) else None
    return f"writes a null {sql_type(part)} as an empty one" if isinstance(inner, StructType) else ""


def _same_names(part: DataType) -> str:
    names = [name.lower() for name in part.names] if isinstance(part, StructType) else []
    double = next((name for name in names if names.count(name) > 1), None)
    return "" if double is None else f"takes two fields called {double!r}, in upper and lower case, for one"


_REASONS = {DELTALAKE: _same_names, PYICEBERG: _empty_for_null}
