"""Columns of encoded values: `decode` makes structs of them, `encode` makes them of structs.

Each is an Arrow function, which gets no other column. Its values, schemas and errors stay in the task's process.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from spark_streams.connector.errors import DecodeError, EncodeError, InvalidOptionError, RStreamError, SchemaError
from spark_streams.connector.schemas.avro import AvroRead
from spark_streams.connector.schemas.avro_plan import plan_of
from spark_streams.connector.schemas.avro_steps import FEWEST, MOST_BYTES, read_values
from spark_streams.connector.schemas.decoder import HEAD, Decoder, decoder_of, frame, is_head, reader_of, registry_of
from spark_streams.connector.schemas.fit import Fit, UnfitError, fitter
from spark_streams.connector.schemas.json_schema import parse
from spark_streams.connector.schemas.payload_format import (
    AVRO,
    JSON,
    PROTOBUF,
    PayloadFormat,
    check_format,
    check_url,
    form_of,
    login_of,
    read_schema,
    valid_schema,
)
from spark_streams.connector.schemas.protobuf import ProtobufReader
from spark_streams.connector.schemas.reasons import BAD_VALUE, UnreadableError
from spark_streams.connector.schemas.schema_columns import avro_columns, json_columns
from spark_streams.connector.schemas.schema_registry import Schema
from spark_streams.connector.spark.arrow import ArrayFunction, arrow_function, arrow_schema
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.connector.wire.lines import Index, Spans

# -- a new column beside the others, by a function that gives a value and a reason -------------------------------------

_VALUE, _REASON = "value", "reason"


def _with_staged(
    df: DataFrame, source: str, target: str, reason: str, function: ArrayFunction, kind: DataType
) -> DataFrame:
    """Return the frame with column `target` of the function's values, and `reason` of its reasons, if it has a name.

    Spark calls the function once for each row.
    """
    returns = StructType([StructField(_VALUE, kind), StructField(_REASON, StringType())])
    made = arrow_function(function, df.schema[source].dataType, returns)(F.col(quoted(source)))
    name = "__made"
    while name in df.columns:
        name += "_"
    staged = df.select("*", made.alias(name))
    value, why = F.col(f"{name}.{_VALUE}").alias(target), F.col(f"{name}.{_REASON}").alias(reason or _REASON)
    kept = [value if one == target else F.col(quoted(one)) for one in df.columns]
    return staged.select(*kept, *([] if target in df.columns else [value]), *([why] if reason else []))


def _check_added(function: str, df: DataFrame, source: str, target: str, reason: str) -> None:
    """Raise SchemaError if the result would have a column twice. source: the column that the function reads."""
    added = [target.lower()] * (target != source) + [reason.lower()] * bool(reason)
    names = [name.lower() for name in df.columns] + added
    twice = [name for name in added if names.count(name) > 1]
    if twice:
        raise SchemaError(f"the result of {function} would have column {twice[0]!r} twice: choose another name")


def _staged_array(
    values: Iterable[Any],
    convert: Callable[[Any], Any],
    kind: pa.DataType,
    error_of: Callable[[str], RStreamError] | None,
) -> pa.Array:
    """Return structs of a converted value and a reason. A null stays null, without a reason. error_of: the error of the
    first reason, None: there is none."""
    converted: list[Any] = []
    reasons: list[str | None] = []
    for value in values:
        result, why = None, None
        if value is not None:
            try:
                result = convert(value)
            except RStreamError:
                raise
            except Exception as error:  # noqa: BLE001 - a value that does not fit, or what a format's package raises
                why = _reason(error)
        if why is not None and error_of is not None:
            raise error_of(why)
        converted.append(result)
        reasons.append(why)
    return pa.StructArray.from_arrays([pa.array(converted, kind), pa.array(reasons, pa.string())], [_VALUE, _REASON])


def _reason(error: Exception) -> str:
    if isinstance(error, UnreadableError):
        return error.reason
    return f"{BAD_VALUE}: {error.path}" if isinstance(error, UnfitError) else BAD_VALUE


# -- decode ------------------------------------------------------------------------------------------------------------


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
    kinds = {field.name: field.dataType for field in df.schema}
    if not isinstance(kinds.get(payload), BinaryType | StringType):
        raise SchemaError(
            f"decode needs column {payload!r} as BINARY or STRING, and the rows have {', '.join(df.columns)}: declare "
            f"{payload} BINARY in the source's schema"
        )
    _check_added("decode", df, payload, column or payload, reason)
    fitter(struct, form.format == JSON)
    function = partial(decode_array, form=form, struct=struct, strict="" if reason else payload)
    return _with_staged(df, payload, column or payload, reason, function, struct)


@functools.cache
def _target_of(struct: StructType, has_texts: bool) -> tuple[Fit, pa.StructType]:
    """Return what makes values fit these columns, and their type in Arrow."""
    return fitter(struct, has_texts), pa.struct(list(arrow_schema(struct)))


def decode_array(values: pa.Array, form: PayloadFormat, struct: StructType, strict: str = "") -> pa.Array:
    """Return structs of a value and a reason. strict: the column whose first wrong value raises DecodeError."""
    decoder, (fit, kind) = decoder_of(form), _target_of(struct, form.format == JSON)

    def convert(value: bytes | str) -> Any:
        return fit(decoder.decode(value.encode() if isinstance(value, str) else value))

    def error_of(why: str) -> DecodeError:
        return DecodeError(
            f"a value of column {strict!r} cannot be decoded: {why}; set reason='why' to get a column with the "
            "reason of each value, for route_dead_letters"
        )

    stage = partial(_staged_array, convert=convert, kind=kind, error_of=error_of if strict else None)
    if form.format != AVRO or len(values) < FEWEST or values.nbytes > MOST_BYTES:
        given = values.to_pylist()
        decoder.prepare(given)
        return stage(given)
    bodies = values.cast(pa.large_binary())
    heads = pc.binary_slice(bodies, 0, HEAD if form.framed else 0)
    decoder.prepare(heads.to_pylist())
    planned = [(np.zeros(0, np.int64), pa.nulls(0, kind)), *_planned(decoder, bodies, heads, kind)]
    rows = np.concatenate([rows for rows, _ in planned])
    left = np.delete(np.arange(len(values)), rows)
    structs, reasons = stage(values.take(pa.array(left)).to_pylist()).flatten()
    order = pa.array(np.argsort(np.concatenate([rows, left])))
    structs = pa.concat_arrays([*(part for _, part in planned), structs]).take(order)
    reasons = pa.concat_arrays([pa.nulls(len(rows), pa.string()), reasons]).take(order)
    return pa.StructArray.from_arrays([structs, reasons], [_VALUE, _REASON])


def _planned(
    decoder: Decoder, bodies: pa.Array, heads: pa.Array, kind: pa.StructType
) -> Iterator[tuple[Index, pa.Array]]:
    """Decode the values of schemas with a plan, and return their rows and structs. Other rows are left. heads: the
    framing of each value, empty if there is none.
    """
    named = heads.dictionary_encode()
    place = named.indices.fill_null(len(named.dictionary)).to_numpy()
    _, bounds, data = bodies.buffers()
    bound = np.frombuffer(bounds, np.int64)[bodies.offset :]
    count = np.bincount(place, minlength=1)[: len(named.dictionary)]
    for number in np.flatnonzero(count >= FEWEST).tolist():
        head, rows = named.dictionary[number].as_py(), np.flatnonzero(place == number)
        if head and not is_head(head):
            continue
        read = decoder.reading(int.from_bytes(head[1:], "big"), ())
        plan = plan_of(read, kind) if isinstance(read, AvroRead) else None
        if plan is not None:
            spans = Spans(np.frombuffer(data, np.uint8), bound[rows] + len(head), bound[rows + 1])
            structs, is_read = read_values(spans, plan)
            yield rows[is_read], structs if is_read.all() else structs.filter(pa.array(is_read))


def columns_of(form: PayloadFormat) -> dict[str, str]:
    """Return the SQL types of the columns that a form's schema names. Raises SchemaError, InvalidOptionError."""
    if not form.schema and not form.descriptors:
        raise InvalidOptionError("decode needs schema or into beside registry: the columns of the struct come from it")
    with valid_schema(form.format, "set into='name TYPE, …'"):
        reader = reader_of(form)
        if isinstance(reader, ProtobufReader):
            return reader.columns()
        columns = json_columns if form.format == JSON else avro_columns
        return columns(parse(form.schema.encode()))


def _struct(form: PayloadFormat, into: str | StructType) -> StructType:
    """Return the columns of the result. Raises SchemaError, InvalidOptionError, UnsupportedError."""
    if into:
        with valid_schema(form.format, "correct it"):
            reader_of(form)
        struct = StructType.fromDDL(into) if isinstance(into, str) else into
    else:
        struct = StructType.fromDDL(", ".join(f"{quoted(name)} {kind}" for name, kind in columns_of(form).items()))
    if not isinstance(struct, StructType) or not struct.fields:
        raise SchemaError("into names no columns: write it as 'id BIGINT, name STRING'")
    return struct


# -- encode: what a task does, a struct of Spark in, bytes out ---------------------------------------------------------


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
    from spark_streams.connector.schemas.writers import AvroWriter, JsonWriter, ProtobufWriter

    if target.format == PROTOBUF:
        return ProtobufWriter(target.descriptors, target.schema, target.message)
    assert target.schema is not None
    if target.format == JSON:
        return JsonWriter(target.schema, StructType.fromJson(json.loads(target.columns)))
    return AvroWriter(target.schema)


@functools.cache
def encoder_of(target: EncodeTarget) -> Encoder:
    """Return this process' encoder of a target."""
    return Encoder(target)


def encode_array(values: pa.Array, target: EncodeTarget, strict: str = "") -> pa.Array:
    """Return structs of a value and a reason. strict: the column whose first wrong value raises EncodeError."""

    def error_of(why: str) -> EncodeError:
        return EncodeError(
            f"a value of column {strict!r} does not fit the schema: {why}; cast that field to the schema's type "
            "without losing digits, or set reason='why' to get a column with the reason of each value"
        )

    return _staged_array(_python_values(values), encoder_of(target).encode, pa.binary(), error_of if strict else None)


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


# -- encode: what the driver does, which asks the registry first -------------------------------------------------------

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
    _check_added("encode", df, column, into or column, reason)
    checked_login = login_of(login)
    check_format(format, registry, checked_login)
    if bool(registry) == bool(os.fspath(schema)):
        raise InvalidOptionError("encode needs either registry and subject, or schema: set one of them")
    if bool(subject) != bool(registry) or (version != _LATEST and not registry):
        raise InvalidOptionError("subject and version name a schema of registry: set registry and subject, or neither")
    if version != _LATEST and not (str(version).isascii() and str(version).isdigit()):
        raise InvalidOptionError(f"version={str(version)!r} must be a number, or 'latest'")
    if bool(message) != (format == PROTOBUF):
        raise InvalidOptionError("message names the Protobuf message: set it for format='protobuf', and only there")
    if schema_id is not None and (registry or not 0 <= schema_id < _MOST_IDS):
        raise InvalidOptionError("schema_id is the number of schema in a registry, for values with framing: set schema")
    descriptors, given = b"", None
    if registry:
        given = registry_of(check_url(registry), checked_login, format == PROTOBUF).version(subject, str(version))
        if given.kind != format.upper():
            raise SchemaError(f"subject {subject!r} is in {given.kind}: set format={given.kind.lower()!r}")
        schema_id = given.schema_id
    else:
        text, descriptors = read_schema(format, os.fspath(schema))
        given = None if format == PROTOBUF else Schema(text)
    target = EncodeTarget(format, given, descriptors, message, schema_id, kind.json())
    with valid_schema(format, "correct it"):
        names = encoder_of(target).names
    unknown = [name for name in kind.names if names is not None and name not in names]
    if unknown:
        raise SchemaError(f"column {column!r} has {unknown[0]!r}, and the schema has no such field: leave it out")
    function = partial(encode_array, target=target, strict="" if reason else column)
    return _with_staged(df, column, into or column, reason, function, BinaryType())
