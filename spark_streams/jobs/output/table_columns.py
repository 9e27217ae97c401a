"""Columns of a table: formats, how rows are fitted to a table that exists, and types that a format does not keep.

| difference between rows and table | effect |
|---|---|
| a column that the table lacks | TableError, or the job adds it (`schema = "merge"`) |
| a column that the rows lack | it is null in new rows; TableError if it is NOT NULL |
| a type of the table that holds each value of the rows' type | the value has the table's type |
| another type | TableError |

Names are compared as Spark does: upper case and lower case are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from spark_streams.connector.errors import ConfigError, TableError
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.job_columns import sql_type

# Formats whose tables are folders of files, which Spark replaces partition by partition.
FILES = ("parquet", "orc", "json", "csv", "avro", "xml")
# Those of them whose files name their columns and types.
SELF_DESCRIBING = ("parquet", "orc", "avro")
DELTA = "delta"
DELTALAKE = "deltalake"
PYICEBERG = "pyiceberg"
# Formats that a Python package writes, without a jar, and the extra that brings the package.
PACKAGES = {DELTALAKE: "delta", PYICEBERG: "iceberg"}
# They need a path or a name.
ONCE = (*FILES, DELTA, *PACKAGES)


_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_DIGITS_OF_DOUBLE = 15  # a double holds every integer of so many digits
_DIGITS_OF_FLOAT = 7


class TableFit(NamedTuple):
    """How rows are fitted to a table."""

    columns: StructType  # those that the table has after the first write
    added: StructType  # those that it gets by it
    missing: tuple[str, ...]  # names of those that the rows lack
    changed: str = ""  # what `--check` says about values that readers see changed
    required: tuple[str, ...] = ()  # names of the table's columns that may not be null

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


def check_partitions(shown: str, theirs: Sequence[str], ours: Sequence[str]) -> None:
    """Raise TableError if a table has other partitions than the job writes. shown: the table in the message."""
    if list(theirs) != list(ours):
        raise TableError(
            f"{shown} is partitioned by {', '.join(theirs) or 'nothing'}, but the job writes it by "
            f"{', '.join(ours) or 'nothing'}: set partition_by to the table's, or name another table"
        )


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


# Types that a table may be partitioned by: those of which each value is written and read back as it was.
#
# | format | not as a partition | because |
# |---|---|---|
# | deltalake | DECIMAL with a scale | `-1.10` is `-1.-10` in the log: nobody can read the table again |
# | | BINARY | the value is other bytes when it is read, and others again after a compaction |
# | files | BINARY | bytes that are not UTF-8 are lost in the folder's name |
# | | TIMESTAMP, if the session's zone is not UTC | the name is a local time, which two times of autumn share |
# | all | FLOAT, DOUBLE | NaN has no place in pyiceberg, 5e-324 is too long a name of a file, 0.0 and -0.0 are equal |
# | | others | the writer or the format refuses them, some after the first batch |
#
# Measured with deltalake 1.6, pyiceberg 0.12 and Spark 4.3 (tests/legs/recipes/test_partition_types.py).


_ALWAYS: tuple[type[DataType], ...] = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, StringType),
    *(DateType, TimestampType, TimestampNTZType, DecimalType),
)
# Beside them, by format.
_ALSO: dict[str, tuple[type[DataType], ...]] = {DELTALAKE: (), PYICEBERG: (BinaryType,), **dict.fromkeys(FILES, ())}
_UTC = ("utc", "etc/utc", "gmt", "etc/gmt", "z", "+00:00", "zulu", "etc/zulu", "uct", "etc/uct", "utc+00:00")
# The name that Hive and Spark give to the folder of null.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def check_partition_types(where: str, kind: str, keys: Iterable[str], columns: StructType, zone: str) -> None:
    """Raise ConfigError if a value of these columns would not be read back as it was.

    where: the table's settings; zone: time zone of the session.
    """
    if kind not in _ALSO:
        return
    for field in partition_fields(keys, columns):
        allowed = _ALWAYS + _ALSO[kind]
        has_scale = isinstance(field.dataType, DecimalType) and field.dataType.scale > 0
        if not isinstance(field.dataType, allowed) or (kind == DELTALAKE and has_scale):
            raise ConfigError(
                f"{where}.partition_by names {field.name!r}, a {sql_type(field.dataType)}: {kind} does not keep each "
                f"value of this type as a partition; {_remedy(field.dataType)}"
            )
        if kind in FILES and isinstance(field.dataType, TimestampType):
            _check_zone(where, field, zone)


def _check_zone(where: str, field: StructField, zone: str) -> None:
    if zone.lower() not in _UTC:
        raise ConfigError(
            f"{where}.partition_by names {field.name!r}, a TIMESTAMP: the name of its folder is a time in the zone "
            f'{zone}, which two times can share; set [spark] "spark.sql.session.timeZone" = "UTC", or partition by its '
            "date (a DATE column)"
        )


def _remedy(partition_type: DataType) -> str:
    if _is_nested(partition_type):
        return "partition by another column"
    text = "hex(c)" if isinstance(partition_type, BinaryType) else "CAST(c AS STRING)"
    return f"partition by a DATE, a whole number or a STRING of it (a column with the SQL {text})"


def partition_fields(keys: Iterable[str], columns: StructType) -> list[StructField]:
    """Return the columns that partition the table. Names are compared as Spark does."""
    by_name = {field.name.lower(): field for field in columns}
    return [by_name[key.lower()] for key in keys if key.lower() in by_name]


def changed_values(kind: str, keys: Collection[str], columns: StructType, *, in_catalog: bool = False) -> str:
    """Return the line of `--check` about values that readers see changed; "" if there are none.

    in_catalog: whether the table is in Spark's catalog, which tells readers the types.
    """
    if kind != DELTALAKE and kind not in FILES:
        return ""
    fields = partition_fields(keys, columns)
    texts = ", ".join(field.name for field in fields if isinstance(field.dataType, StringType))
    empty = f"an empty text of {texts} is written as null" if texts else ""
    if kind == DELTALAKE or in_catalog or not fields:
        return empty
    declared = ", ".join(f"{quoted(field.name)} {sql_type(field.dataType)}" for field in fields)
    guessed = f"readers must declare {declared}: Spark guesses the types of folders, and reads '007' as 7"
    return "; ".join(filter(None, (guessed, empty)))


def with_null_folders(rows: DataFrame, keys: Iterable[str]) -> DataFrame:
    """Return the rows with null for each text that shares the folder of null.

    Otherwise a task that has both writes one file twice, and fails.
    """
    texts = [field.name for field in partition_fields(keys, rows.schema) if isinstance(field.dataType, StringType)]
    instead = {name: F.when(~has_null_folder(F.col(quoted(name))), F.col(quoted(name))) for name in texts}
    return rows.withColumns(instead) if texts else rows


def has_null_folder(text: Column) -> Column:
    """Whether a text of a partition shares the folder of null."""
    return text.isin("", _NULL_FOLDER)


# Types of columns that a Python package writes as they are. Others are refused before the table is created.
#
# | package | not written | because |
# |---|---|---|
# | both | VARIANT | the first start creates a struct of bytes, which no later start takes |
# | | intervals, TIME | the package fails |
# | deltalake | STRUCT with fields `a` and `A` | names of Delta's columns are the same in upper and lower case |
# | pyiceberg | ARRAY<STRUCT<…>>, MAP<…, STRUCT<…>> | it writes a null as an empty one |
# | | VOID | the format has no such type |
#
# Measured with deltalake 1.6, pyiceberg 0.12 and Spark 4.3 (tests/legs/recipes/test_column_types.py).


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
    name = quoted(field.name)
    as_text = f"to_json({name})" if _is_nested(field.dataType) else f"CAST({name} AS STRING)"
    raise ConfigError(
        f"{where}.format {kind!r}: column {field.name!r} is {sql_type(field.dataType)}, and {kind} {reason}; write the "
        f"column as a STRING (in SQL: {as_text}), leave it out, or set another format"
    )


def _is_nested(kind: DataType) -> bool:
    return kind.simpleString().startswith(("array<", "map<", "struct<", "variant"))


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
