"""[columns] and [schema]: names and SQL types of a job's columns. [columns] takes precedence."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError, SchemaError
from spark_streams.connector.running.error_summary import first_line
from spark_streams.connector.schemas.schema_columns import avro_columns, json_columns
from spark_streams.connector.source.rows.cast import check_castable
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.settings.config import FREE, Config, value_at

FOREIGN = {"ddl": str, "json": str, "avro": str, "json_schema": str}
SHAPE = {"columns": FREE, "schema": FOREIGN}


@dataclass(frozen=True)
class Columns:
    """Columns of a job. where: their configuration key; declared: types by name; ddl: instead, a text for Spark."""

    where: str
    declared: Mapping[str, str]
    ddl: str | None = None

    @classmethod
    def parse(cls, config: Config) -> Columns:
        """Read the columns of a configuration. Raises ConfigError."""
        columns, schema = value_at(config, "columns", {}), value_at(config, "schema", {})
        if len(schema) > 1:
            raise ConfigError(f"[schema] has {' and '.join(schema)}: give one of them")
        for name, kind in columns.items():
            if not isinstance(kind, str):
                raise ConfigError(f"columns.{name} must be an SQL type, not {kind!r}")
        if not schema and not columns:
            raise ConfigError("columns is missing (or [schema]): set one of them to name the fields and their types")
        if not schema:
            return cls("[columns]", columns)
        (key, value), *_ = schema.items()
        where = f"schema.{key}"
        if not value:
            raise ConfigError(f"{where} is empty: name the fields to read and their types")
        if key != "ddl":
            return cls(where, {**_from_file(where, value, _READERS[key], columns), **columns})
        if columns:
            raise ConfigError("[columns] and schema.ddl contradict each other: write all columns into one of them")
        return cls(where, {}, value)

    @property
    def needs_spark(self) -> bool:
        """Whether only a Spark session can tell the types."""
        return self.ddl is not None

    @cached_property
    def types(self) -> Mapping[str, str]:
        """SQL types by name. Raises ConfigError."""
        if self.ddl is None:
            return self.declared
        return {column.name: sql_type(column.dataType) for column in self.struct()}

    def struct(self) -> StructType:
        """Return the columns as a StructType. Needs a Spark session. Raises ConfigError."""
        ddl = self.ddl or ", ".join(f"{quoted(name)} {kind}" for name, kind in self.declared.items())
        try:
            struct: StructType = StructType.fromDDL(ddl)  # type: ignore[assignment]  # of columns, it is a struct
            arrow = arrow_schema(struct)
        except Exception as error:
            raise ConfigError(f"{self.where}: {first_line(error)}") from error
        try:
            check_castable(arrow, frozenset())
        except SchemaError as error:
            raise ConfigError(f"{self.where}: {error.message}") from None
        return struct


def sql_type(kind: DataType) -> str:
    """Return the type's name in SQL."""
    if isinstance(kind, StructType):
        inner = ", ".join(f"{quoted(field.name)}: {sql_type(field.dataType)}" for field in kind)
        return f"STRUCT<{inner}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return kind.simpleString().upper()


def _of_spark(schema: Json, excluded: Container[str]) -> dict[str, str]:
    """Read the output of df.schema.json()."""
    struct = StructType.fromJson(schema)
    return {column.name: sql_type(column.dataType) for column in struct if column.name not in excluded}


# Each takes the content of the file, and the names that [columns] sets.
Reader = Callable[[Json, Container[str]], dict[str, str]]
_READERS: dict[str, Reader] = {
    "json": _of_spark,
    "avro": avro_columns,
    "json_schema": json_columns,
}


def _from_file(where: str, path: str, read: Reader, excluded: Container[str]) -> dict[str, str]:
    """Read columns from a file. Raises ConfigError."""
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {path!r} (seen from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: the file {path!r} cannot be read as JSON: {error}") from None
    try:
        return read(schema, excluded)
    except ConfigError as error:
        raise ConfigError(f"{where}: {path}: {error.message}") from None
    except Exception as error:
        raise ConfigError(
            f"{where}: {path} is not a valid schema: {type(error).__name__} {first_line(error)}"
        ) from error
