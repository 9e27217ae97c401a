"""Arrow columns to the bytes of XADD commands, without a Python object per row (FACTS A3).

    *7 $4 XADD $6 orders   $1 *     $1 f $3 123    $1 g $2 ab
    |<-- head, stream -->| |< id >| |< a piece for each column >|

All pieces are joined row by row by one Arrow kernel. Bytes that are the same in all rows (a head, a stream's name, a
field's name) are put before the length of the next value, and a table returns both by that length: a column without
nulls costs one lookup and two pieces. The joined array's data buffer is the request; its offsets cut it into commands
and chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.wire.connection import pack

_TABLE = 256  # lengths in the table
_CRLF = b"\r\n"
_ANY_ID = b"$1\r\n*\r\n"


@dataclass(frozen=True)
class Requests:
    """Packed commands in a row: command i is data[offsets[i]:offsets[i+1]]."""

    data: memoryview
    offsets: npt.NDArray[np.int64]

    @classmethod
    def concatenate(cls, parts: Sequence[Requests]) -> Requests:
        data = b"".join(part.slice(0, len(part)) for part in parts)
        sizes = [np.zeros(1, np.int64), *[np.diff(part.offsets) for part in parts]]
        return cls(memoryview(data), np.cumsum(np.concatenate(sizes)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> memoryview:
        """Return the bytes of commands start … stop-1."""
        return self.data[int(self.offsets[start]) : int(self.offsets[stop])]


def encode_xadd(
    stream: bytes | pa.DictionaryArray,
    names: Sequence[bytes],
    values: Sequence[pa.Array],
    first: pa.Array | None = None,
    ids: pa.Array | None = None,
) -> tuple[Requests, pa.Array]:
    """Encode one `XADD stream id name value …` per row; a null value omits its field.

    stream: one for all rows, or a dictionary array of names (binary) without nulls. names: the field names. values: a
    binary (or string) array for each name, all of one length. first: a map<binary, binary> per row, whose fields
    precede the named ones. ids: the entry IDs (binary or string), null for `*`. Returns the requests, and an int32
    array with the number of fields of each row (0: the row has no field, and its bytes are not a valid command).
    """
    rows = len(first) if first is not None else len(values[0])
    binary = [_binary(value) for value in values]
    pieces = _Pieces()
    if first is not None:
        packed, count = pack_maps(first)
        filled = pc.add(_count_valid(binary, rows), count)
        pieces.add(_counts(filled))
    elif any(value.null_count for value in binary):
        filled = _count_valid(binary, rows)
        pieces.add(_counts(filled))
    else:
        filled = pa.array(np.full(rows, len(binary), np.int32))
        pieces.same(_count(len(binary)))
    if isinstance(stream, bytes):
        pieces.same(_bulk(stream))
    else:
        stream_bulks = pa.array([_bulk(name) for name in stream.dictionary.to_pylist()], pa.binary())
        pieces.add(stream_bulks.take(stream.indices))
    if ids is None:
        pieces.same(_ANY_ID)
    else:
        pieces.add(pc.fill_null(_join([*_sized(b"", _binary(ids)), _scalar(_CRLF)]), _ANY_ID))
    if first is not None:
        pieces.add(packed)
    for name, value in zip(names, binary, strict=True):
        if value.null_count:
            piece = _join([*_sized(_bulk(name), value), _scalar(_CRLF)])
            pieces.add(pc.fill_null(piece, b""))
        else:
            pieces.add(*_sized(pieces.take_same() + _bulk(name), value))
            pieces.same(_CRLF)
    return _requests(pieces.joined()), filled


def pack_maps(maps: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Return all fields of each row as packed arguments (binary), and their number (int32)."""
    bounds = maps.offsets.to_numpy()
    count = pa.array(np.diff(bounds).astype(np.int32))
    parts: list[pa.Array | pa.Scalar] = []
    for child in (maps.keys, maps.items):
        # A sliced map still has all its children.
        value = child.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).cast(pa.binary())
        parts += [*_sized(b"", pc.fill_null(value, b"")), _scalar(_CRLF)]
    offsets = pa.array((bounds - bounds[0]).astype(np.int64))
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, _join(parts)), b""), count


class _Pieces:
    """The pieces to join, and bytes common to all rows that precede the next piece."""

    def __init__(self) -> None:
        self._pieces: list[pa.Array | pa.Scalar] = []
        self._same = b""

    def same(self, data: bytes) -> None:
        self._same += data

    def take_same(self) -> bytes:
        taken, self._same = self._same, b""
        return taken

    def add(self, *pieces: pa.Array | pa.Scalar) -> None:
        if self._same:
            self._pieces.append(_scalar(self.take_same()))
        self._pieces += pieces

    def joined(self) -> pa.Array:
        self.add()
        return _join(self._pieces)


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _binary(value: pa.Array) -> pa.Array:
    """Return the values as binary, without a copy if possible."""
    return value.view(pa.binary()) if pa.types.is_string(value.type) else value.cast(pa.binary())


def _sized(before: bytes, value: pa.Array) -> tuple[pa.Array | pa.Scalar, ...]:
    """Return pieces for `before`, the value's length header and the value; null if the value is null."""
    length = pc.binary_length(value)
    longest = pc.max(length).as_py()
    if longest is not None and longest >= _TABLE:
        size = length.cast(pa.string()).view(pa.binary())
        return _scalar(before + b"$"), size, _scalar(_CRLF), value
    return _headers(before).take(length), value


@lru_cache(maxsize=512)
def _headers(before: bytes) -> pa.Array:
    return pa.array([b"%b$%d\r\n" % (before, length) for length in range(_TABLE)], pa.binary())


def _join(pieces: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, b"")


def _requests(joined: pa.Array) -> Requests:
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1].astype(np.int64)
    return Requests(memoryview(data) if data is not None else memoryview(b""), bounds)


def _count_valid(values: Sequence[pa.Array], rows: int) -> pa.Array:
    count = np.full(rows, len(values), np.int32)
    for value in values:
        if value.null_count:
            count -= pc.is_null(value).to_numpy(zero_copy_only=False)
    return pa.array(count)


def _count(fields: int) -> bytes:
    return b"*%d\r\n%b" % (3 + 2 * fields, pack("XADD").split(_CRLF, 1)[1])


def _counts(filled: pa.Array) -> pa.Array:
    """Return the start of each row's command, by the number of its fields."""
    max_fields = pc.max(filled).as_py() or 0
    return pa.array([_count(fields) for fields in range(max_fields + 1)], pa.binary()).take(filled)
