"""Decode a column of encoded values into a struct: an Arrow function, which gets no other column."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_streams.errors import ConfigError, DecodeError, InvalidOptionError, RStreamError, SchemaError
from spark_streams.schemas import avro_columns, json_columns
from spark_streams.schemas.decoder import AVRO, FORMATS, JSON, PROTOBUF, Form, decoder_of, reader_of
from spark_streams.schemas.fit import fitter
from spark_streams.schemas.json_text import parse
from spark_streams.schemas.protobuf import ProtobufReader
from spark_streams.schemas.reasons import BAD_VALUE, UnreadableError
from spark_streams.schemas.registry import NO_LOGIN, Login, Schema, check_url
from spark_streams.spark.arrow_function import arrow_function
from spark_streams.spark.arrow_schema import arrow_schema
from spark_streams.spark.sql_name import quoted

_VALUE, _REASON = "value", "reason"


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
    form = _form(format, registry, os.fspath(schema), message, _login(login), framed)
    struct = _struct(form, into)
    target = column or payload
    _check(df, payload, target, reason)
    if struct.fields:
        fitter(struct, form.format == JSON)
    returns = StructType([StructField(_VALUE, struct), StructField(_REASON, StringType())])
    decoded = arrow_function(_function(form, struct, payload, bool(reason)), returns)(F.col(quoted(payload)))
    name = _free_name(df)
    staged = df.select("*", decoded.alias(name))
    value, why = F.col(f"{name}.{_VALUE}").alias(target), F.col(f"{name}.{_REASON}").alias(reason or _REASON)
    kept = [value if one == target else F.col(quoted(one)) for one in df.columns]
    return staged.select(*kept, *([] if target in df.columns else [value]), *([why] if reason else []))


def _function(form: Form, struct: StructType, payload: str, has_reason: bool) -> Callable[[pa.Array], pa.Array]:
    """Return what a task does with a batch. Its values, schemas and errors stay in the task's process."""

    def decode_values(values: pa.Array) -> pa.Array:
        return decode_array(values, form, struct, "" if has_reason else payload)

    return decode_values


def decode_array(values: pa.Array, form: Form, struct: StructType, strict: str = "") -> pa.Array:
    """Return structs of a value and a reason. strict: the column whose first wrong value raises DecodeError."""
    decode_one, fit = decoder_of(form).decode, fitter(struct, form.format == JSON)
    kind = pa.struct(list(arrow_schema(struct)))
    decoded: list[Any] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        fitted, why = None, None
        if value is not None:
            try:
                fitted = fit(decode_one(value.encode() if isinstance(value, str) else value))
            except RStreamError:
                raise
            except UnreadableError as error:
                why = error.reason
            except Exception:  # noqa: BLE001 - a null for a record, or what no type holds: MisfitError and others
                why = BAD_VALUE
        if why is not None and strict:
            raise DecodeError(
                f"a value of column {strict!r} cannot be decoded: {why}; set reason='why' to get a column with the "
                "reason of each value, for route_dead_letters"
            )
        decoded.append(fitted)
        reasons.append(why)
    return pa.StructArray.from_arrays([pa.array(decoded, kind), pa.array(reasons, pa.string())], [_VALUE, _REASON])


def _form(format: str, registry: str, schema: str, message: str, login: Login, framed: bool | None) -> Form:
    if format not in FORMATS:
        raise InvalidOptionError(f"format={format!r} must be one of {', '.join(map(repr, FORMATS))}")
    if not registry and not schema:
        raise InvalidOptionError("decode needs registry or schema: set one of them")
    if registry and framed is False:
        raise InvalidOptionError("framed=False contradicts registry, which needs the ID before each value: remove one")
    if login != NO_LOGIN and not registry:
        raise InvalidOptionError("login is for a registry: set registry, or remove login")
    if bool(message) != (format == PROTOBUF and bool(schema)):
        raise InvalidOptionError(
            "message names the Protobuf message of schema: set both for format='protobuf', or neither"
        )
    url = check_url(registry) if registry else ""
    has_frame = bool(registry) if framed is None else framed
    if format == PROTOBUF:
        return Form(format, "", _read(schema) if schema else b"", message, url, login, has_frame)
    text = schema if not schema or schema.lstrip()[:1] in ("{", "[", '"') else _read(schema).decode()
    return Form(format, text, b"", "", url, login, has_frame)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SchemaError(f"schema {path!r} cannot be read: {error.strerror}; give a text or a file") from None


def _login(login: tuple[str, str | os.PathLike[str]] | str | None) -> Login:
    if login is None:
        return NO_LOGIN
    if isinstance(login, str):
        module, colon, function = login.partition(":")
        if module and colon and function.isidentifier():
            return Login(function=login)
    elif len(login) == 2 and login[0] and login[1]:
        return Login(login[0], os.fspath(login[1]))
    raise InvalidOptionError("login must be (user, password file) or 'module:function'")


def _struct(form: Form, into: str | StructType) -> StructType:
    """Return the columns of the result. Raises SchemaError, InvalidOptionError, UnsupportedError."""
    derived: dict[str, str] | None = None
    given = Schema(form.schema, form.format.upper()) if form.schema else None
    try:
        reader = reader_of(form, given)
        if not into:
            derived = _derived(form, reader)
    except ConfigError as error:
        reason = error.message.removesuffix(f": {avro_columns.REMEDY}")
        raise SchemaError(f"schema: {reason}; set into='name TYPE, …'") from None
    except RStreamError:
        raise
    except Exception as error:  # noqa: BLE001 - the libraries raise many errors for a wrong schema
        raise SchemaError(f"schema is not valid {form.format}: {type(error).__name__} {error}; correct it") from None
    if derived is None:
        struct = StructType.fromDDL(into) if isinstance(into, str) else into
    else:
        struct = StructType.fromDDL(", ".join(f"{quoted(name)} {kind}" for name, kind in derived.items()))
    if not isinstance(struct, StructType) or not struct.fields:
        raise SchemaError("into names no columns: write it as 'id BIGINT, name STRING'")
    return struct


def _derived(form: Form, reader: Any) -> dict[str, str]:
    if not form.schema and not form.descriptors:
        raise InvalidOptionError("decode needs schema or into beside registry: the columns of the struct come from it")
    if isinstance(reader, ProtobufReader):
        return reader.columns()
    columns = json_columns.columns if form.format == JSON else avro_columns.columns
    return columns(parse(form.schema.encode()))


def _check(df: DataFrame, payload: str, target: str, reason: str) -> None:
    kinds = {field.name: field.dataType for field in df.schema}
    if not isinstance(kinds.get(payload), BinaryType | StringType):
        raise SchemaError(
            f"decode needs column {payload!r} as BINARY or STRING, and the rows have {', '.join(df.columns)}: declare "
            f"{payload} BINARY in the source's schema"
        )
    added = [target.lower()] * (target != payload) + [reason.lower()] * bool(reason)
    names = [name.lower() for name in df.columns] + added
    twice = [name for name in added if names.count(name) > 1]
    if twice:
        raise SchemaError(f"the result of decode would have column {twice[0]!r} twice: choose another name")


def _free_name(df: DataFrame) -> str:
    name = "__decoded"
    while name in df.columns:
        name += "_"
    return name
