"""Types that a table may be partitioned by: those of which each value is written and read back as it was.

| format | not as a partition | because |
|---|---|---|
| deltalake | DECIMAL with a scale | `-1.10` is `-1.-10` in the log: nobody can read the table again |
| | BINARY | the value is other bytes when it is read, and others again after a compaction |
| files | BINARY | bytes that are not UTF-8 are lost in the folder's name |
| | TIMESTAMP, if the session's zone is not UTC | the name is a local time, which two times of autumn share |
| all | FLOAT, DOUBLE | NaN has no place in pyiceberg, 5e-324 is too long a name of a file, 0.0 and -0.0 are equal |
| | others | the writer or the format refuses them, some after the first batch |

Measured with deltalake 1.6, pyiceberg 0.12 and Spark 4.3 (tests/legs/recipes/test_partition_types.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.output.formats import DELTALAKE, FILES, PYICEBERG
from spark_streams.jobs.schema.columns import sql_type

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
    if partition_type.simpleString().startswith(("array<", "map<", "struct<", "variant")):
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
