"""Encode a column of structs into bytes: what a task does, and the public function, which asks the registry first."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_streams.connector.errors import EncodeError, InvalidOptionError, SchemaError
from spark_streams.connector.schemas.decoder import frame, registry_of
from spark_streams.connector.schemas.fit import REASON, VALUE, UnfitError, check_added, staged_array, with_staged
from spark_streams.connector.schemas.payload_format import (
    AVRO,
    JSON,
    PROTOBUF,
    Login,
    check_format,
    check_url,
    login_of,
    read_schema,
    valid_schema,
)
from spark_streams.connector.schemas.reasons import BAD_VALUE
from spark_streams.connector.schemas.schema_registry import Schema

# -- what a task does: a struct of Spark in, bytes out -----------------------------------------------------------------


@dataclass(frozen=True)
class EncodeTarget:
    """As what values are written. It goes to the tasks, which ask no registry."""

    format: str
    schema: Schema | None  # None: the descriptors of a file
    descriptors: bytes = field(default=b"", repr=False)
    message: str = ""  # for Protobuf
    schema_id: int | None = None  # None: values without framing
    columns: str = ""  # the struct's type as JSON


class FormatWriter(Protocol):
    """A format with its schema. names: of the members that a struct may have, None: any."""

    indexes: tuple[int, ...]
    names: frozenset[str] | None

    def write(self, value: Any) -> bytes:
        """Return the bytes of a value. Raises one of UNFIT."""


class Encoder:
    def __init__(self, target: EncodeTarget) -> None:
        """Raise errors of the format's package if the schema is not valid."""
        self._writer = _writer(target)
        self.names = self._writer.names
        self._head = b"" if target.schema_id is None else frame(target.schema_id, self._writer.indexes)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a struct, as Arrow gives it to Python. Raises one of UNFIT."""
        return self._head + self._writer.write(value)


def _writer(target: EncodeTarget) -> FormatWriter:
    """Return the writer of a format. Raises UnsupportedError if its package is missing."""
    if target.format == PROTOBUF:
        from spark_streams.connector.schemas.writers import ProtobufWriter

        return ProtobufWriter(target.descriptors, target.schema, target.message)
    assert target.schema is not None
    if target.format == JSON:
        from spark_streams.connector.schemas.writers import JsonWriter

        return JsonWriter(target.schema, StructType.fromJson(json.loads(target.columns)))
    from spark_streams.connector.schemas.writers import AvroWriter

    return AvroWriter(target.schema)


@functools.cache
def encoder_of(target: EncodeTarget) -> Encoder:
    """Return this process' encoder of a target."""
    return Encoder(target)


# -- what the driver does ----------------------------------------------------------------------------------------------

_LATEST = "latest"
_MOST_IDS = 1 << 31


def encode(
    df: DataFrame,
    column: str,
    *,
    into: str = "",
    format: str = AVRO,
    registry: str = "",
    subject: str = "",
    version: int | str = _LATEST,
    schema: str | os.PathLike[str] = "",
    schema_id: int | None = None,
    message: str = "",
    reason: str = "",
    login: tuple[str, str | os.PathLike[str]] | str | None = None,
) -> DataFrame:
    """Encode a struct column into Avro, Protobuf or JSON values. The counterpart of `decode`.

    Args:
        df: Streaming or batch frame.
        column: Column with the structs. A null stays null, without a reason.
        into: Name of the new BINARY column. Default: `column`, which it replaces.
        format: `avro`, `protobuf`, or `json` (validated by JSON Schema).
        registry: URL of a schema registry with Confluent's interface. The process that calls `encode` asks it once for
            each subject and version. Values then have Confluent's framing. No schema is registered.
        subject: Subject in the registry, for example `orders-value`.
        version: Version of the subject. Default: the latest at the time of the first call.
        schema: Without a registry: the schema, as a text or a file. For `protobuf` it is the file of a compiled
            FileDescriptorSet.
        schema_id: With `schema`: the ID for Confluent's framing. Default: values without framing.
        message: Full name of the Protobuf message, for example `shop.Order`.
        reason: Name of a new column that says why a value could not be encoded: `bad-value: ` and the field. It is null
            if the value could be encoded. Without it, the first such value stops the query.
        login: User and password file, or `module:function`, a function that returns `(user, password)`.

    Returns:
        The frame with the values, and all other columns unchanged.

    Raises:
        InvalidOptionError: Arguments are missing, wrong, or contradict each other.
        SchemaError: The schema cannot be read, or the struct has a column that it does not have.
        UnsupportedError: The package of the format is missing.
        RegistryError: The registry does not answer for a minute, refuses the login, or lacks the subject.
        EncodeError: In the query: a value does not fit the schema, and `reason` is not set.
    """
    kind = {one.name: one.dataType for one in df.schema}.get(column)
    if not isinstance(kind, StructType):
        raise SchemaError(
            f"encode needs column {column!r} as a STRUCT, and the rows have {', '.join(df.columns)}: make one with "
            "F.struct('id', 'amount')"
        )
    check_added("encode", df, column, into or column, reason)
    target = _target(
        format, registry, subject, str(version), os.fspath(schema), schema_id, message, login_of(login), kind.json()
    )
    with valid_schema(format, "correct it"):
        names = encoder_of(target).names
    unknown = [name for name in kind.names if names is not None and name not in names]
    if unknown:
        raise SchemaError(f"column {column!r} has {unknown[0]!r}, and the schema has no such field: leave it out")
    returns = StructType([StructField(VALUE, BinaryType()), StructField(REASON, StringType())])
    return with_staged(df, column, into or column, reason, _function(target, "" if reason else column), returns)


def _function(target: EncodeTarget, strict: str) -> Callable[[pa.Array], pa.Array]:
    """Return what a task does with a batch. Its values and errors stay in the task's process."""

    def encode_values(values: pa.Array) -> pa.Array:
        return encode_array(values, target, strict)

    return encode_values


def encode_array(values: pa.Array, target: EncodeTarget, strict: str = "") -> pa.Array:
    """Return structs of a value and a reason. strict: the column whose first wrong value raises EncodeError."""

    def why_not(error: Exception) -> str:
        return f"{BAD_VALUE}: {error.path}" if isinstance(error, UnfitError) else BAD_VALUE

    def error_of(why: str) -> EncodeError:
        return EncodeError(
            f"a value of column {strict!r} does not fit the schema: {why}; cast that field to the schema's type "
            "without losing digits, or set reason='why' to get a column with the reason of each value"
        )

    encode_one = encoder_of(target).encode
    return staged_array(_python_values(values), encode_one, pa.binary(), why_not, error_of if strict else None)


def _python_values(values: pa.Array) -> Iterable[Any]:
    try:
        return [*values.to_pylist()]
    except (ValueError, ArithmeticError):  # a time that Python does not have
        return map(_python_value, values)


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, ArithmeticError):
        return ()  # no struct: it fits nothing


def _target(
    format: str,
    registry: str,
    subject: str,
    version: str,
    schema: str,
    schema_id: int | None,
    message: str,
    login: Login,
    columns: str,
) -> EncodeTarget:
    check_format(format, registry, login)
    if bool(registry) == bool(schema):
        raise InvalidOptionError("encode needs either registry and subject, or schema: set one of them")
    if bool(subject) != bool(registry) or (version != _LATEST and not registry):
        raise InvalidOptionError("subject and version name a schema of registry: set registry and subject, or neither")
    if version != _LATEST and not (version.isascii() and version.isdigit()):
        raise InvalidOptionError(f"version={version!r} must be a number, or 'latest'")
    if bool(message) != (format == PROTOBUF):
        raise InvalidOptionError("message names the Protobuf message: set it for format='protobuf', and only there")
    if schema_id is not None and (registry or not 0 <= schema_id < _MOST_IDS):
        raise InvalidOptionError("schema_id is the number of schema in a registry, for values with framing: set schema")
    if not registry:
        text, descriptors = read_schema(format, schema)
        given = None if format == PROTOBUF else Schema(text)
        return EncodeTarget(format, given, descriptors, message, schema_id, columns)
    found = registry_of(check_url(registry), login, format == PROTOBUF).version(subject, version)
    if found.kind != format.upper():
        raise SchemaError(f"subject {subject!r} is in {found.kind}: set format={found.kind.lower()!r}")
    return EncodeTarget(format, found, b"", message, found.schema_id, columns)
