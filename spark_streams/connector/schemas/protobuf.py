"""Protobuf by the package protobuf: messages of a FileDescriptorSet, or of a registry that gives its descriptors.

    scalars    as they are; uint64 DECIMAL(20, 0), uint32 BIGINT     message   STRUCT        repeated   ARRAY
    enum       STRING, its name                                      map       MAP           oneof      a column each
    Timestamp  TIMESTAMP, only whole microseconds                    wrappers  their value   not set    null

A field without presence that is not set has its default (0, empty), as Protobuf says.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from spark_streams.connector.errors import ConfigError, RegistryError
from spark_streams.connector.schemas import reasons
from spark_streams.connector.schemas.reasons import BAD_VALUE, OTHER_SCHEMA, StepBudget, UnreadableError, library
from spark_streams.connector.schemas.schema_registry import Schema

TIMESTAMP, _OF_GOOGLE = "google.protobuf.Timestamp", "google.protobuf."
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES = {1: "DOUBLE", 2: "FLOAT", 3: "BIGINT", 4: "DECIMAL(20, 0)", 5: "INT", 6: "DECIMAL(20, 0)", 7: "BIGINT"}
TYPES |= {8: "BOOLEAN", 9: "STRING", 12: "BINARY", 13: "BIGINT", 14: "STRING", 15: "INT", 16: "BIGINT"}
TYPES |= {17: "INT", 18: "BIGINT"}
_Read = Callable[[Any], Any]


class ProtobufReader:
    """Reads values as the reader's message; without one, as their own."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        """Raise UnsupportedError if protobuf is missing, KeyError or others if the set lacks the message."""
        self._messages = library("google.protobuf.message_factory")
        self._files, self._pools = library("google.protobuf.descriptor_pb2"), library("google.protobuf.descriptor_pool")
        for name in ("timestamp", "wrappers", "duration", "any", "struct", "empty", "field_mask"):
            library(f"google.protobuf.{name}_pb2")  # they are then in the default pool
        self._steps = StepBudget()
        self._written: dict[Schema, Any] = {}  # files by the schemas that give them
        self._reader = None
        if descriptors:
            pool = self._pool(list(self._files.FileDescriptorSet.FromString(descriptors).file))
            self._reader = pool.FindMessageTypeByName(message)

    def columns(self) -> dict[str, str]:
        """Return the SQL types of the reader's fields by name. Raises ConfigError."""
        return _columns(self._reader, ())

    def reading(self, writer: Schema | None, indexes: tuple[int, ...]) -> Callable[[bytes], Any]:
        """Return the function that reads messages at this place of a file. It raises UnreadableError."""
        message: Any = self._reader
        if writer is not None:
            message = self._reader or self._at(self._file_of(writer), indexes)
            if message.full_name != self._at(self._file_of(writer), indexes).full_name:
                raise UnreadableError(OTHER_SCHEMA)
        elif indexes and self._at(message.file, indexes).full_name != message.full_name:
            raise UnreadableError(OTHER_SCHEMA)
        kind, read = self._messages.GetMessageClass(message), _Message(message, {}, self._steps).read

        def read_value(body: bytes) -> Any:
            value = kind.FromString(body)
            if not kind.IsInitialized(value):
                raise UnreadableError(BAD_VALUE)
            self._steps.begin(reasons.FIELDS_OF_A_BYTE * len(body))
            return read(value)

        return read_value

    def message_of(self, writer: Schema | None, name: str) -> tuple[Any, Any, tuple[int, ...]]:
        """Return (class, descriptor, message indexes) to write by: of the registry's file, or the reader's. Raises
        KeyError.
        """
        message = self._reader
        if writer is not None:
            file = self._file_of(writer)
            message = file.pool.FindMessageTypeByName(name)
            if message.file.name != file.name:
                raise KeyError(f"{name} is a message of {message.file.name}, to which the schema only refers")
        return self._messages.GetMessageClass(message), message, _place(message)

    def _file_of(self, writer: Schema) -> Any:
        """Return the file of a schema, which is made once."""
        if writer in self._written:
            return self._written[writer]
        files = []
        for one in (*writer.references, writer):
            try:
                file = self._files.FileDescriptorProto.FromString(b64decode(one.text, validate=True))
            except Exception:  # noqa: BLE001 - not base64, or no descriptor: the text of a .proto file
                raise RegistryError(
                    f"schema {writer.schema_id} came as .proto text, and only a compiled descriptor can be read: the "
                    "registry does not know format=serialized. Give schema='x.desc' (protoc --include_imports "
                    "--descriptor_set_out=x.desc) and message, without registry and with framed=True"
                ) from None
            file.name = one.name or file.name
            files.append(file)
        files[-1].name = files[-1].name or "of-the-registry.proto"
        self._written[writer] = self._pool(files).FindFileByName(files[-1].name)
        return self._written[writer]

    def _at(self, file: Any, indexes: tuple[int, ...]) -> Any:
        """Return the message at this place.

        Confluent's serializers count the entries of maps, which are messages in a descriptor, but not if they normalize
        schemas or if the schema is a text with map<…>. No value is an entry of a map: then the others are counted.
        """
        inner, message = list(file.message_types_by_name.values()), None
        for index in indexes:
            if index < len(inner) and _is_entry(inner[index]):
                inner = [one for one in inner if not _is_entry(one)]
            if index >= len(inner):
                raise UnreadableError(OTHER_SCHEMA)
            message = inner[index]
            inner = list(message.nested_types)
        return message

    def _pool(self, files: list[Any]) -> Any:
        """Return a pool with these files, and those of Google that they import."""
        pool, given, added = self._pools.DescriptorPool(), {file.name: file for file in files}, set()

        def add(file: Any) -> None:
            if file.name in added:
                return
            added.add(file.name)
            for name in file.dependency:
                if name not in given:
                    known = self._pools.Default().FindFileByName(name)
                    given[name] = self._files.FileDescriptorProto.FromString(known.serialized_pb)
                add(given[name])
            pool.AddSerializedFile(file.SerializeToString())

        for file in files:
            add(file)
        return pool


def _place(message: Any) -> tuple[int, ...]:
    """Return the message indexes of a message."""
    outer = message.containing_type
    inner = message.file.message_types_by_name.values() if outer is None else outer.nested_types
    return (*(() if outer is None else _place(outer)), [one.full_name for one in inner].index(message.full_name))


def is_map(field: Any) -> bool:
    return field.message_type is not None and _is_entry(field.message_type)


def _is_entry(message: Any) -> bool:
    return bool(message.GetOptions().map_entry)


def is_wrapper(message: Any) -> bool:
    return message.full_name.startswith(_OF_GOOGLE) and message.full_name.endswith("Value") and (
        [field.name for field in message.fields] == ["value"] and message.fields[0].message_type is None
    )  # fmt: skip


class _Message:
    """Reads messages of one type. types: those that were met in a value, by name. A type may contain itself."""

    def __init__(self, kind: Any, types: dict[str, _Message], steps: StepBudget) -> None:
        self._types, self._steps = types, steps
        self._parts: dict[int, tuple[str, _Read]] = {}  # by number: an extension may have the name of a field
        self._unset: dict[str, Any] = {}  # what fields are that are not set
        for field in kind.fields:
            read = self._part(field)
            self._parts[field.number] = field.name, read
            self._unset[field.name] = None if field.has_presence else read(field.default_value)
        types[kind.full_name] = self

    def read(self, message: Any) -> dict[str, Any]:
        """Return the fields of a message. Raises UnreadableError."""
        fields = type(message).ListFields(message)  # of the class: a field may have the name of a method
        self._steps.take(len(fields) + (len(self._unset) - len(fields)) // reasons.UNSET_OF_A_FIELD)
        values = self._unset.copy()
        for field, value in fields:
            part = self._parts.get(field.number)
            if part is not None:  # not an extension
                values[part[0]] = part[1](value)
        return values

    def _part(self, field: Any) -> _Read:
        one = self._one(field.message_type.fields_by_name["value"] if is_map(field) else field)
        if is_map(field):
            return lambda entries: {key: one(entries[key]) for key in entries}
        return (lambda items: [*map(one, items)]) if field.is_repeated else one

    def _one(self, field: Any) -> _Read:
        kind, types, steps = field.message_type, self._types, self._steps
        if field.enum_type is not None:
            names = field.enum_type.values_by_number
            return lambda number: number if (known := names.get(number)) is None else known.name  # it fits no text
        if kind is None:
            return lambda value: value
        if kind.full_name == TIMESTAMP:
            return _time
        if is_wrapper(kind):
            return attrgetter("value")
        name = kind.full_name

        def read_inner(message: Any) -> Any:
            return (types.get(name) or _Message(kind, types, steps)).read(message)

        return read_inner


def _time(value: Any) -> datetime:
    if not 0 <= value.nanos < 10**9 or value.nanos % 1000:
        raise UnreadableError(BAD_VALUE)
    return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)


def _columns(message: Any, around: tuple[str, ...]) -> dict[str, str]:
    if message.full_name in around:
        raise ConfigError(f"message {message.full_name} contains itself, which no column can")
    return {field.name: _type(field, (*around, message.full_name)) for field in message.fields}


def _type(field: Any, around: tuple[str, ...]) -> str:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"MAP<{_type(key, around)}, {_type(value, around)}>"
    kind = TYPES.get(field.type)
    if kind is None:
        inner = field.message_type
        if inner.full_name == TIMESTAMP:
            kind = "TIMESTAMP"
        elif is_wrapper(inner):
            kind = TYPES[inner.fields[0].type]
        else:
            parts = (f"`{name}`: {of_part}" for name, of_part in _columns(inner, around).items())
            kind = f"STRUCT<{', '.join(parts)}>"
    return f"ARRAY<{kind}>" if field.is_repeated else kind
