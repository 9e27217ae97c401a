"""Bytes in, a Python value or a reason out: without Spark."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.schemas import reasons
from spark_streams.connector.schemas.payload_format import JSON, PROTOBUF, Login, PayloadFormat
from spark_streams.connector.schemas.schema_registry import MOST_KEPT, Registry, Schema

# -- the framing of Confluent's serializers: the bytes before a value --------------------------------------------------

# 00   magic byte
# 4    ID of the schema, big-endian
# …    Protobuf only: the message indexes, zigzag varints: their count, then the place of the message among the
#      messages of the file, then among the messages within it. A single 0 is short for the first message.
# …    the value

HEAD = 5
_LARGEST_ID = 2**31 - 1  # a registry's IDs are signed: it would refuse a larger one, as no registry does
_LAST_HEAD = b"\0" + _LARGEST_ID.to_bytes(4, "big")
_MOST_INDEXES = 100  # protoc refuses messages that are nested as deeply


class Framed(NamedTuple):
    schema_id: int
    indexes: tuple[int, ...]  # path to the Protobuf message in its file; empty for other formats
    body: bytes


def unframe(value: bytes, has_indexes: bool) -> Framed:
    """Split a value from its framing. Raises UnreadableError."""
    if len(value) < HEAD or value[0] != 0:
        raise reasons.UnreadableError(reasons.BAD_FRAMING)
    schema_id = int.from_bytes(value[1:HEAD], "big")
    if schema_id > _LARGEST_ID:
        raise reasons.UnreadableError(reasons.BAD_FRAMING)
    if not has_indexes:
        return Framed(schema_id, (), value[HEAD:])
    count, at = _zigzag(value, HEAD)
    if count == 0:
        return Framed(schema_id, (0,), value[at:])
    if not 0 < count <= _MOST_INDEXES:
        raise reasons.UnreadableError(reasons.BAD_FRAMING)
    indexes = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        indexes.append(index)
    if min(indexes) < 0:
        raise reasons.UnreadableError(reasons.BAD_FRAMING)
    return Framed(schema_id, tuple(indexes), value[at:])


def ids_of(values: Iterable[bytes | str | None]) -> list[int]:
    """Return the IDs that values name, those of most values first. Texts are left out."""
    heads = Counter(value[:HEAD] for value in values if isinstance(value, bytes))
    return [int.from_bytes(head[1:], "big") for head, _ in heads.most_common() if is_head(head)]


def is_head(head: bytes) -> bool:
    return len(head) == HEAD and head <= _LAST_HEAD


def frame(schema_id: int, indexes: tuple[int, ...]) -> bytes:
    """Return the bytes before a value. indexes: empty for other formats than Protobuf."""
    head = b"\0" + schema_id.to_bytes(4, "big")
    if indexes == (0,):
        return head + b"\0"
    return head + b"".join(_varint(2 * number) for number in ((len(indexes), *indexes) if indexes else ()))


def _varint(number: int) -> bytes:
    more = []
    while number > 0x7F:
        more.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*more, number])


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it. Raises UnreadableError."""
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(value):
            break
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise reasons.UnreadableError(reasons.BAD_FRAMING)


# -- decoding ----------------------------------------------------------------------------------------------------------

Read = Callable[[bytes], Any]


class Reader(Protocol):
    """A format with the reader's schema."""

    def reading(self, writer: Any, indexes: tuple[int, ...]) -> Read:
        """Return the function that reads values of the writer's schema."""


class Decoder:
    """Decodes values of one form. Schemas are parsed once."""

    def __init__(self, form: PayloadFormat, registry: Registry | None = None) -> None:
        """registry: its client, shared by the decoders of a process. Raises errors of the format's package if the
        schema is not valid.
        """
        self._form, self._registry = form, registry
        self._given = _given(form)
        self._reader = reader_of(form)
        self._answers: dict[int, Schema | None] = {}  # of the registry, for the last batch
        self._reads: dict[tuple[int, tuple[int, ...]], Read | reasons.UnreadableError] = {}

    def prepare(self, values: Iterable[bytes | str | None]) -> None:
        """Ask the registry at once for the schemas that these values name. Raises RegistryError."""
        if self._form.framed and self._registry is not None:
            self._answers = self._registry.answers(ids_of(values))

    def decode(self, value: bytes) -> Any:
        """Return the value. Raises UnreadableError with the reason, RegistryError if the registry cannot be asked."""
        schema_id, body = 0, value
        indexes: tuple[int, ...] = ()
        if self._form.framed:
            schema_id, indexes, body = unframe(value, self._form.format == PROTOBUF)
        read = self.reading(schema_id, indexes)
        if isinstance(read, reasons.UnreadableError):
            raise read
        try:
            return read(body)
        except (RStreamError, reasons.UnreadableError):
            raise
        except Exception:  # noqa: BLE001 - the libraries raise many errors for wrong bytes
            raise reasons.UnreadableError(reasons.BAD_VALUE) from None

    def reading(self, schema_id: int, indexes: tuple[int, ...]) -> Read | reasons.UnreadableError:
        """Return what reads values that name this schema, or why they cannot be read. Raises RegistryError."""
        if self._registry is None:
            schema_id = 0  # all values have the schema that was given
        return self._reads.get((schema_id, indexes)) or self._new_read(schema_id, indexes)

    def _new_read(self, schema_id: int, indexes: tuple[int, ...]) -> Read | reasons.UnreadableError:
        writer: Schema | None = self._given
        if self._registry is not None:
            is_answered = schema_id in self._answers
            writer = self._answers[schema_id] if is_answered else self._registry.schema(schema_id)
            if writer is None:  # it is asked for again with a later batch
                return reasons.UnreadableError(reasons.UNKNOWN_SCHEMA)
        read: Read | reasons.UnreadableError
        try:
            if writer is not None and writer.kind != self._form.format.upper():
                raise reasons.UnreadableError(reasons.OTHER_SCHEMA)
            read = self._reader.reading(writer, indexes)
        except RStreamError:
            raise
        except reasons.UnreadableError as error:
            read = error
        except Exception:  # noqa: BLE001 - a registry may hold what a library does not accept
            read = reasons.UnreadableError(reasons.OTHER_SCHEMA)
        if len(self._reads) >= MOST_KEPT:
            self._reads.clear()
        self._reads[schema_id, indexes] = read
        return read


def _given(form: PayloadFormat) -> Schema | None:
    return Schema(form.schema, form.format.upper()) if form.schema else None


def reader_of(form: PayloadFormat) -> Reader:
    """Return the reader of a format. Raises UnsupportedError if its package is missing."""
    if form.format == PROTOBUF:
        from spark_streams.connector.schemas.protobuf import ProtobufReader

        return ProtobufReader(form.descriptors, form.message)
    if form.format == JSON:
        from spark_streams.connector.schemas.json_schema import JsonReader

        return JsonReader(_given(form))
    from spark_streams.connector.schemas.avro import AvroReader

    return AvroReader(_given(form))


@functools.cache
def registry_of(url: str, login: Login, serialized: bool) -> Registry:
    return Registry(url, login, serialized)


@functools.cache
def decoder_of(form: PayloadFormat) -> Decoder:
    """Return this process' decoder of a form."""
    registry = registry_of(form.registry, form.login, form.format == PROTOBUF) if form.registry else None
    return Decoder(form, registry)
