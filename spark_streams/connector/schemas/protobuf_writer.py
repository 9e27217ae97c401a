"""Values of Spark as Protobuf messages. Each value is first fitted to its field's type, without rounding."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from spark_streams.connector.schemas.fit import UNFIT, MisfitError, UnfitError, fitter, pairs_of
from spark_streams.connector.schemas.protobuf import (
    EPOCH,
    TIMESTAMP,
    TYPES,
    ProtobufReader,
    is_map,
    is_repeated,
    is_wrapper,
)
from spark_streams.connector.schemas.registry import Schema

_KINDS: dict[str, T.DataType] = {
    "BOOLEAN": T.BooleanType(), "INT": T.IntegerType(), "BIGINT": T.LongType(), "DECIMAL(20, 0)": T.DecimalType(20, 0),
    "FLOAT": T.FloatType(), "DOUBLE": T.DoubleType(), "STRING": T.StringType(), "BINARY": T.BinaryType(),
}  # fmt: skip
_FITS = {number: fitter(_KINDS[name]) for number, name in TYPES.items()}  # by the type's number
_TIME = fitter(T.TimestampType())


class ProtobufWriter:
    """Writes structs as one message. names: of its fields; indexes: the message indexes of its framing."""

    def __init__(self, descriptors: bytes, schema: Schema | None, message: str) -> None:
        """schema: of a registry, or None. Raise UnsupportedError if protobuf is missing, KeyError for the message."""
        reader = ProtobufReader(descriptors, message)
        self._kind, self._message, self.indexes = reader.message_of(schema, message)
        self.names: frozenset[str] | None = frozenset(self._message.fields_by_name)

    def write(self, value: Any) -> bytes:
        """Return the bytes, the same for equal values. Raises one of UNFIT."""
        message = self._kind()
        _fill(message, self._message, value)
        if not self._kind.IsInitialized(message):
            raise UnfitError(self._kind.FindInitializationErrors(message)[0], MisfitError())
        return bytes(self._kind.SerializeToString(message, deterministic=True))


# A field may have the name of a method or of DESCRIPTOR: methods are those of the class, and `kind` is the descriptor.


def _fill(message: Any, kind: Any, value: Any) -> None:
    if type(value) is not dict:
        raise MisfitError(value)
    fields = kind.fields_by_name
    for name, part in value.items():
        try:
            _set(message, fields[name], part)
        except UNFIT as error:
            raise UnfitError(name, error) from None


def _set(message: Any, field: Any, value: Any) -> None:
    """Set a field. Null is a field that is not set: others than those that have presence would get their default."""
    if value is None:
        if not field.has_presence:
            raise MisfitError(value)
        return
    target = getattr(message, field.name)
    if is_map(field):
        key_field, value_field = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for key, part in pairs_of(value):
            if value_field.message_type is None:
                target[_scalar(key_field, key)] = _scalar(value_field, part)
            else:
                _put(target[_scalar(key_field, key)], value_field.message_type, part)
    elif is_repeated(field):
        if type(value) is not list:
            raise MisfitError(value)
        for part in value:
            if field.message_type is None:
                target.append(_scalar(field, part))
            else:
                _put(target.add(), field.message_type, part)
    else:
        if field.containing_oneof is not None and type(message).WhichOneof(message, field.containing_oneof.name):
            raise MisfitError(value)  # the other one would be lost
        if field.message_type is None:
            setattr(message, field.name, _scalar(field, value))
        else:
            type(target).SetInParent(target)
            _put(target, field.message_type, value)


def _put(message: Any, kind: Any, value: Any) -> None:
    if kind.full_name == TIMESTAMP:
        passed = _TIME(value) - EPOCH
        message.seconds, message.nanos = passed // timedelta(seconds=1), passed.microseconds * 1000
    elif is_wrapper(kind):
        message.value = _scalar(kind.fields[0], value)
    else:
        _fill(message, kind, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_name[value].number
    fitted = _FITS[field.type](value)
    return int(fitted) if type(fitted) is Decimal else fitted
