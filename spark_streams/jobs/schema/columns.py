"""[columns] and [schema]: names and types of a job's columns, as SQL has them; what [columns] says goes first."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_streams.errors import ConfigError
from spark_streams.jobs.schema import avro, json_schema
from spark_streams.jobs.settings.config import FREE, Config, value_at
from spark_streams.model.untyped import Json
from spark_streams.running.error_summary import first_line

FOREIGN = {"ddl": str, "json": str, "avro": str, "json_schema": str}
SHAPE = {"columns": FREE, "schema": FOREIGN}


@dataclass(frozen=True)
class Columns:
    """where: what the configuration calls them; given: name and type; ddl: instead of these, a text for Spark."""

    where: str
    given: Mapping[str, str]
    ddl: str | None = None

    @classmethod
    def of(cls, config: Config) -> Columns:
        """Raises ConfigError."""
        columns, schema = value_at(config, "columns", {}), value_at(config, "schema", {})
        if len(schema) > 1:
            raise ConfigError(f"[schema] has {' and '.join(schema)}: give one of them")
        for name, kind in columns.items():
            if not isinstance(kind, str):
                raise ConfigError(f"columns.{name} must be an SQL type, not {kind!r}")
        if not schema and not columns:
            raise ConfigError("columns is missing (or [schema]): say which fields to read, and of what type")
        if not schema:
            return cls("[columns]", columns)
        (key, value), *_ = schema.items()
        where = f"schema.{key}"
        if not value:
            raise ConfigError(f"{where} is empty: say which fields to read, and of what type")
        if key != "ddl":
            return cls(where, {**_from_file(where, value, _READERS[key], columns), **columns})
        if columns:
            raise ConfigError("[columns] and schema.ddl contradict each other: put all columns into one of them")
        return cls(where, {}, value)

    @property
    def needs_spark(self) -> bool:
        """Whether it takes a session to know the types."""
        return self.ddl is not None

    @cached_property
    def types(self) -> Mapping[str, str]:
        """By name the type, as SQL has it. Raises ConfigError."""
        if self.ddl is None:
            return self.given
        return {column.name: sql_type(column.dataType) for column in self.struct()}

    def struct(self) -> StructType:
        """With a session: the same for Spark. Raises ConfigError."""
        ddl = self.ddl or ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in self.given.items())
        try:
            return StructType.fromDDL(ddl)  # type: ignore[return-value]  # of columns, it is a struct
        except Exception as error:
            raise ConfigError(f"{self.where}: {first_line(error)}") from error


def sql_type(kind: DataType) -> str:
    """As SQL has it."""
    if isinstance(kind, StructType):
        inner = ", ".join(f"`{one.name.replace('`', '``')}`: {sql_type(one.dataType)}" for one in kind)
        return f"STRUCT<{inner}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return kind.simpleString().upper()


def is_nested(kind: str) -> bool:
    """Whether values of this type are JSON in an entry."""
    return kind.strip().upper().startswith(("STRUCT", "ARRAY", "MAP"))


def _of_spark(schema: Json, but: Container[str]) -> dict[str, str]:
    """df.schema.json()."""
    found = StructType.fromJson(schema)
    return {column.name: sql_type(column.dataType) for column in found if column.name not in but}


# Each takes what the file holds, and the names that [columns] says.
Reader = Callable[[Json, Container[str]], dict[str, str]]
_READERS: dict[str, Reader] = {
    "json": _of_spark,
    "avro": avro.columns,
    "json_schema": json_schema.columns,
}


def _from_file(where: str, path: str, read: Reader, but: Container[str]) -> dict[str, str]:
    """Raises ConfigError."""
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {path!r} (seen from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: the file {path!r} cannot be read as JSON: {error}") from None
    try:
        return read(schema, but)
    except ConfigError as error:
        raise ConfigError(f"{where}: {path}: {error.message}") from None
    except Exception as error:
        raise ConfigError(f"{where}: {path} is no such schema: {type(error).__name__} {first_line(error)}") from error
