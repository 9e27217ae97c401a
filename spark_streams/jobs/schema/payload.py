"""[decode]: a field of the entries that holds an encoded record, whose fields become the job's columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_streams.connector.errors import ConfigError, RStreamError
from spark_streams.connector.schemas.decode import columns_of, decode
from spark_streams.connector.schemas.payload_format import AVRO, form_of, login_of
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.schema.columns import Columns
from spark_streams.jobs.settings.config import Config, value_at

SHAPE = {
    "field": str, "format": str, "registry": str, "schema": str, "message": str, "login": (str, list), "framed": bool,
}  # fmt: skip
RECORD, WHY = "_record", "_undecoded"


@dataclass(frozen=True)
class Payload:
    """field: of the entries; options: of `decode`; columns: SQL types of the record's fields by name."""

    field: str
    options: Mapping[str, object]
    columns: Mapping[str, str]

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
        declared = Columns.parse({"columns": config["columns"]}).declared if config.get("columns") else {}
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
