"""Decode a column of encoded values into a struct: an Arrow function, which gets no other column."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_streams.connector.errors import DecodeError, InvalidOptionError, SchemaError
from spark_streams.connector.schemas.decoder import Reader, decoder_of, reader_of
from spark_streams.connector.schemas.fit import REASON, VALUE, check_added, fitter, staged_array, with_staged
from spark_streams.connector.schemas.json_schema import parse
from spark_streams.connector.schemas.payload_format import AVRO, JSON, PayloadFormat, form_of, login_of, valid_schema
from spark_streams.connector.schemas.protobuf import ProtobufReader
from spark_streams.connector.schemas.reasons import BAD_VALUE, UnreadableError
from spark_streams.connector.schemas.schema_columns import avro_columns, json_columns
from spark_streams.connector.schemas.schema_registry import Schema
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.spark.running_pyspark import quoted


def decode(
    df: DataFrame,
    payload: str,
    *,
    format: str = AVRO,
    registry: str = "",
    schema: str | os.PathLike[str] = "",
    message: str = "",
    into: str | StructType = "",
    column: str = "",
    reason: str = "",
    login: tuple[str, str | os.PathLike[str]] | str | None = None,
    framed: bool | None = None,
) -> DataFrame:
    """Decode a column of Avro, Protobuf or JSON values into a struct.

    Args:
        df: Streaming or batch frame.
        payload: Column with the values, BINARY or STRING. A null stays null, without a reason.
        format: `avro`, `protobuf`, or `json` (validated by JSON Schema).
        registry: URL of a schema registry with Confluent's interface. Each value then names its own schema.
        schema: The schema to read values as, or the only one, if there is no registry. It is a text or a file. For
            `protobuf` it is the file of a compiled FileDescriptorSet.
        message: Full name of the Protobuf message in `schema`, for example `shop.Order`.
        into: Columns of the struct, as DDL or StructType. Default: those of `schema`. A column that a value does not
            have is null, and members without a column are left out.
        column: Name of the struct. Default: `payload`, which it replaces.
        reason: Name of a new column that says why a value could not be decoded: `bad-framing`, `unknown-schema`,
            `other-schema` or `bad-value`. It is null if the value could be decoded. Without it, the first such value
            stops the query.
        login: User and password file, or `module:function`, a function that returns `(user, password)`. The process
            that sends a request reads the file, or calls the function.
        framed: Whether values begin with Confluent's framing. Default: whether there is a registry. With `schema` alone
            the ID is skipped.

    Returns:
        The frame with the struct, and all other columns unchanged.

    Raises:
        InvalidOptionError: Arguments are missing, wrong, or contradict each other.
        SchemaError: The schema cannot be read, has no columns, or a column is missing or there twice.
        UnsupportedError: The package of the format is missing.
        RegistryError: In the query: the registry does not answer for a minute, or refuses the login.
        DecodeError: In the query: a value cannot be decoded, and `reason` is not set.
    """
    form = form_of(format, registry, os.fspath(schema), message, login_of(login), framed)
    struct = _struct(form, into)
    target = column or payload
    _check_columns(df, payload, target, reason)
    if struct.fields:
        fitter(struct, form.format == JSON)
    returns = StructType([StructField(VALUE, struct), StructField(REASON, StringType())])
    return with_staged(df, payload, target, reason, _function(form, struct, payload, bool(reason)), returns)


def _function(
    form: PayloadFormat, struct: StructType, payload: str, has_reason: bool
) -> Callable[[pa.Array], pa.Array]:
    """Return what a task does with a batch. Its values, schemas and errors stay in the task's process."""

    def decode_values(values: pa.Array) -> pa.Array:
        return decode_array(values, form, struct, "" if has_reason else payload)

    return decode_values


def decode_array(values: pa.Array, form: PayloadFormat, struct: StructType, strict: str = "") -> pa.Array:
    """Return structs of a value and a reason. strict: the column whose first wrong value raises DecodeError."""
    decoder, fit, given = decoder_of(form), fitter(struct, form.format == JSON), values.to_pylist()
    decode_one = decoder.decode
    decoder.prepare(given)

    def convert(value: bytes | str) -> Any:
        return fit(decode_one(value.encode() if isinstance(value, str) else value))

    def why_not(error: Exception) -> str:
        return error.reason if isinstance(error, UnreadableError) else BAD_VALUE

    def error_of(why: str) -> DecodeError:
        return DecodeError(
            f"a value of column {strict!r} cannot be decoded: {why}; set reason='why' to get a column with the "
            "reason of each value, for route_dead_letters"
        )

    kind = pa.struct(list(arrow_schema(struct)))
    return staged_array(given, convert, kind, why_not, error_of if strict else None)


def columns_of(form: PayloadFormat) -> dict[str, str]:
    """Return the SQL types of the columns that a form's schema names. Raises SchemaError, InvalidOptionError."""
    if not form.schema and not form.descriptors:
        raise InvalidOptionError("decode needs schema or into beside registry: the columns of the struct come from it")
    with valid_schema(form.format, "set into='name TYPE, …'"):
        reader = _reader(form)
        if isinstance(reader, ProtobufReader):
            return reader.columns()
        columns = json_columns if form.format == JSON else avro_columns
        return columns(parse(form.schema.encode()))


def _struct(form: PayloadFormat, into: str | StructType) -> StructType:
    """Return the columns of the result. Raises SchemaError, InvalidOptionError, UnsupportedError."""
    if into:
        with valid_schema(form.format, "correct it"):
            _reader(form)
        struct = StructType.fromDDL(into) if isinstance(into, str) else into
    else:
        struct = StructType.fromDDL(", ".join(f"{quoted(name)} {kind}" for name, kind in columns_of(form).items()))
    if not isinstance(struct, StructType) or not struct.fields:
        raise SchemaError("into names no columns: write it as 'id BIGINT, name STRING'")
    return struct


def _reader(form: PayloadFormat) -> Reader:
    return reader_of(form, Schema(form.schema, form.format.upper()) if form.schema else None)


def _check_columns(df: DataFrame, payload: str, target: str, reason: str) -> None:
    kinds = {field.name: field.dataType for field in df.schema}
    if not isinstance(kinds.get(payload), BinaryType | StringType):
        raise SchemaError(
            f"decode needs column {payload!r} as BINARY or STRING, and the rows have {', '.join(df.columns)}: declare "
            f"{payload} BINARY in the source's schema"
        )
    check_added("decode", df, payload, target, reason)
