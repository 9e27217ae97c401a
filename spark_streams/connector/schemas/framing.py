"""The framing of Confluent's serializers: the bytes before a value.

00   magic byte
4    ID of the schema, big-endian
…    Protobuf only: the message indexes, zigzag varints: their count, then the place of the message among the
     messages of the file, then among the messages within it. A single 0 is short for the first message.
…    the value
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from spark_streams.connector.schemas.reasons import BAD_FRAMING, UnreadableError

_HEAD = 5
_LARGEST_ID = 2**31 - 1  # a registry's IDs are signed: it would refuse a larger one, as no registry does
_LAST_HEAD = b"\0" + _LARGEST_ID.to_bytes(4, "big")
_MOST_INDEXES = 100  # protoc refuses messages that are nested as deeply


class Framed(NamedTuple):
    """A value and its framing. indexes: path to the Protobuf message in its file; empty for other formats."""

    schema_id: int
    indexes: tuple[int, ...]
    body: bytes


def unframe(value: bytes, has_indexes: bool) -> Framed:
    """Split a value from its framing. Raises UnreadableError."""
    if len(value) < _HEAD or value[0] != 0:
        raise UnreadableError(BAD_FRAMING)
    schema_id = int.from_bytes(value[1:_HEAD], "big")
    if schema_id > _LARGEST_ID:
        raise UnreadableError(BAD_FRAMING)
    if not has_indexes:
        return Framed(schema_id, (), value[_HEAD:])
    count, at = _zigzag(value, _HEAD)
    if count == 0:
        return Framed(schema_id, (0,), value[at:])
    if not 0 < count <= _MOST_INDEXES:
        raise UnreadableError(BAD_FRAMING)
    indexes = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        indexes.append(index)
    if min(indexes) < 0:
        raise UnreadableError(BAD_FRAMING)
    return Framed(schema_id, tuple(indexes), value[at:])


def ids_of(values: Iterable[bytes | str | None]) -> list[int]:
    """Return the IDs that values name, those of most values first. Texts are left out."""
    heads = Counter(value[:_HEAD] for value in values if isinstance(value, bytes))
    return [
        int.from_bytes(head[1:], "big") for head, _ in heads.most_common() if len(head) == _HEAD and head <= _LAST_HEAD
    ]


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
    raise UnreadableError(BAD_FRAMING)
