"""Compare the columns of a job's rows with those of a table that exists, and fit the rows to the table.

| difference | effect |
|---|---|
| a column that the table lacks | TableError, or the job adds it (`schema = "merge"`) |
| a column that the rows lack | it is null in new rows; TableError if it is NOT NULL |
| a type of the table that holds each value of the rows' type | the value has the table's type |
| another type | TableError |

Names are compared as Spark does: upper case and lower case are the same.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from spark_streams.connector.errors import TableError
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.schema.columns import sql_type

_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_DIGITS_OF_DOUBLE = 15  # a double holds every integer of so many digits
_DIGITS_OF_FLOAT = 7


class TableFit(NamedTuple):
    """How rows are fitted to a table.

    columns: those that the table has after the first write; added: those that it gets by it; missing: names of those
    that the rows lack; changed: what `--check` says about values that readers see changed; required: names of the
    table's columns that may not be null.
    """

    columns: StructType
    added: StructType
    missing: tuple[str, ...]
    changed: str = ""
    required: tuple[str, ...] = ()

    @property
    def plan(self) -> str:
        """Line of `--check`; "" without a difference."""
        added = f"adds {', '.join(_shown(field) for field in self.added)}" if self.added.fields else ""
        missing = f"writes null to {', '.join(self.missing)}" if self.missing else ""
        return "; ".join(part for part in (added, missing, self.changed) if part)

    def fit(self, rows: DataFrame) -> DataFrame:
        """Return the rows with the columns of the table, in its order."""
        if rows.schema.simpleString() == self.columns.simpleString():
            return rows
        names = {name.lower() for name in rows.columns}
        columns = []
        for field in self.columns:
            is_missing = field.name.lower() not in names
            column = F.lit(None) if is_missing else F.col(quoted(field.name))
            columns.append(column.cast(field.dataType).alias(field.name))
        return rows.select(*columns)


def new_table(rows: StructType) -> TableFit:
    """Return the fit for a table that does not exist yet, or whose columns cannot be known.

    Each column may be null: a column that the rows lose later is null from then on.
    """
    return TableFit(StructType([StructField(field.name, field.dataType) for field in rows]), StructType([]), ())


def compare(rows: StructType, table: StructType, shown: str, *, merge: bool, remedy: str) -> TableFit:
    """Compare the columns. Raises TableError.

    shown: the table in messages; merge: whether new columns are added; remedy: what else adds the columns {columns}.
    """
    ours = {field.name.lower(): field for field in rows}
    theirs = {field.name.lower() for field in table}
    added = StructType([StructField(field.name, field.dataType) for field in rows if field.name.lower() not in theirs])
    if added.fields and not merge:
        columns = ", ".join(_shown(field) for field in added)
        raise TableError(f"{shown} lacks the rows' column {columns}: {remedy.format(columns=columns)}")
    missing = []
    for field in table:
        own = ours.get(field.name.lower())
        if own is None:
            if not field.nullable:
                raise TableError(
                    f"the rows lack column {field.name}, which is NOT NULL in {shown}: add it to the rows, or allow "
                    "nulls in the table"
                )
            missing.append(field.name)
        elif not _holds(field.dataType, own.dataType):
            raise TableError(
                f"column {field.name} is {sql_type(field.dataType)} in {shown}, and {sql_type(own.dataType)} in the "
                f"rows: give it the type {sql_type(field.dataType)} (in [columns], a value that does not fit then "
                "becomes a dead letter), or write to another table"
            )
    required = tuple(field.name for field in table if not field.nullable)
    return TableFit(StructType([*table.fields, *added.fields]), added, tuple(missing), required=required)


def add_columns(spark: SparkSession, name: str, columns: StructType) -> None:
    """Add columns to a table of the catalog."""
    if columns.fields:
        spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({', '.join(_shown(field) for field in columns)})")


def _shown(field: StructField) -> str:
    return f"{quoted(field.name)} {sql_type(field.dataType)}"


def _holds(table: DataType, rows: DataType) -> bool:
    """Whether the table's type holds each value of the rows' type exactly."""
    if table.simpleString().lower() == rows.simpleString().lower():
        return True
    if isinstance(table, DoubleType) and isinstance(rows, FloatType):
        return True
    digits = _DIGITS.get(type(rows))
    if isinstance(table, DecimalType):
        if isinstance(rows, DecimalType):
            return table.scale >= rows.scale and table.precision - table.scale >= rows.precision - rows.scale
        return digits is not None and table.precision - table.scale >= digits
    if digits is None:
        return False
    if isinstance(table, DoubleType | FloatType):
        return digits <= (_DIGITS_OF_DOUBLE if isinstance(table, DoubleType) else _DIGITS_OF_FLOAT)
    return type(table) in _DIGITS and _DIGITS[type(table)] >= digits
