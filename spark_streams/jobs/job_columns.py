"""[columns], [schema] and [decode]: names and SQL types of a job's columns, and the field that holds an encoded record.

[columns] takes precedence over a schema that others keep. Pure but for reading files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructField, StructType

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError, RStreamError, SchemaError
from spark_streams.connector.schemas.payload_columns import columns_of, decode
from spark_streams.connector.schemas.payload_format import AVRO, form_of, login_of
from spark_streams.connector.schemas.schema_columns import avro_columns, json_columns
from spark_streams.connector.source.rows.columns import check_castable
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.connector.watch.failure import first_line
from spark_streams.jobs.job_config import FREE, Config, value_at

FOREIGN = {"ddl": str, "json": str, "avro": str, "json_schema": str}
SHAPE = {"columns": FREE, "schema": FOREIGN}


@dataclass(frozen=True)
class JobColumns:
    """Columns of a job. where: their configuration key; declared: types by name; ddl: instead, a text for Spark."""

    where: str
    declared: Mapping[str, str]
    ddl: str | None = None

    @classmethod
    def parse(cls, config: Config) -> JobColumns:
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
        names = [name.lower() for name in struct.names]
        if same := [name for name in struct.names if names.count(name.lower()) > 1]:
            raise ConfigError(
                f"{self.where} has {' and '.join(same)}: they are one name in SQL, so leave out all but one"
            )
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


DECODE_SHAPE = {
    "field": str, "format": str, "registry": str, "schema": str, "message": str, "login": (str, list), "framed": bool,
}  # fmt: skip
RECORD, WHY = "_record", "_undecoded"


@dataclass(frozen=True)
class Payload:
    """A field of the entries that holds an encoded record."""

    field: str
    options: Mapping[str, object]  # of `decode`
    columns: Mapping[str, str]  # SQL types of the record's fields by name

    @classmethod
    def parse(cls, config: Config) -> Payload | None:
        """Read [decode], None without one. [columns] name the fields, else the schema does. Raises ConfigError."""
        options = dict(value_at(config, "decode", {}))
        if not options:
            return None
        field = options.pop("field", "")
        if not field:
            raise ConfigError("decode.field is missing: name the field that holds the encoded record")
        if field.startswith("_"):
            raise ConfigError(f"decode.field is {field!r}: _… is reserved for the job; choose another field")
        if value_at(config, "schema", {}):
            raise ConfigError("[schema] and [decode] contradict each other: name the record's schema in decode.schema")
        login = options.get("login")
        options |= {"login": tuple(login)} if isinstance(login, list) else {}
        declared = JobColumns.parse({"columns": config["columns"]}).declared if config.get("columns") else {}
        try:
            form = form_of(
                str(options.get("format", AVRO)),
                str(options.get("registry", "")),
                str(options.get("schema", "")),
                str(options.get("message", "")),
                login_of(options.get("login")),
                options.get("framed"),
            )
            return cls(field, options, declared or columns_of(form))
        except RStreamError as error:
            raise ConfigError(f"[decode]: {error.message}") from None

    @property
    def source_field(self) -> StructField:
        """The field as the source reads it."""
        return StructField(self.field, BinaryType())

    def decoded(self, entries: DataFrame, columns: StructType) -> DataFrame:
        """Return the entries with the record's columns instead of the field, and WHY."""
        rows = decode(entries, self.field, into=columns, column=RECORD, reason=WHY, **self.options)  # type: ignore[arg-type]
        parts = [F.col(f"{RECORD}.{quoted(name)}") for name in columns.names]
        others = [quoted(name) for name in rows.columns if name not in (RECORD, self.field)]
        missing = F.when(F.col(quoted(self.field)).isNull(), F.lit("missing"))
        return rows.withColumn(WHY, F.coalesce(WHY, missing)).select(*parts, *others)

    def message(self) -> Column:
        """Return the message for an entry that cannot be decoded."""
        return F.concat(F.lit(f"field {self.field!r} cannot be decoded: "), F.col(WHY))
