"""Arrow columns to the bytes of XADD commands, without a Python object per row (FACTS A3).

The data buffer of the joined array is the request; its offsets cut it into commands and chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.wire.connection import pack


@dataclass(frozen=True)
class Requests:
    """Packed commands back to back: command i is data[offsets[i]:offsets[i+1]]."""

    data: memoryview
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> memoryview:
        """The bytes of commands start … stop-1."""
        return self.data[int(self.offsets[start]) : int(self.offsets[stop])]


def encode_xadd(
    stream: bytes, names: Sequence[bytes], values: Sequence[pa.Array], first: pa.MapArray | None = None
) -> tuple[Requests, pa.Array]:
    """One `XADD stream * name value …` per row; a null value leaves its field out.

    names: the field names; values: a binary (or string) array each, all of one length; first: a map<binary, binary>
    per row whose fields stand before the named ones. Returns the requests and an int32 array with the number of fields
    of each row (0: the row has no field, and its bytes are not a valid command).
    """
    rows = len(first) if first is not None else len(values[0])
    binary = [value.cast(pa.binary()) for value in values]
    filled = _count_valid(binary, rows)
    leading: list[pa.Array] = []
    if first is not None:
        packed, count = _pack_maps(first)
        leading.append(packed)
        filled = pc.add(filled, count)
    most = pc.max(filled).as_py() or 0
    pieces: list[pa.Array | pa.Scalar] = [_heads(stream, most).take(filled), *leading]
    for name, value in zip(names, binary, strict=True):
        size = pc.binary_length(value).cast(pa.string()).cast(pa.binary())
        before, after = b"$%d\r\n%b\r\n$" % (len(name), name), b"\r\n"
        if value.null_count == 0:
            pieces += [_scalar(before), size, _scalar(after), value, _scalar(after)]
        else:
            piece = pc.binary_join_element_wise(_scalar(before), size, _scalar(after), value, _scalar(after), _EMPTY)
            pieces.append(pc.fill_null(piece, b""))
    return _join(pieces), filled


_EMPTY = pa.scalar(b"", pa.binary())


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _join(pieces: Sequence[pa.Array | pa.Scalar]) -> Requests:
    joined = pc.binary_join_element_wise(*pieces, _EMPTY)
    _, offsets, data = joined.buffers()
    bounds = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1].astype(np.int64)
    return Requests(memoryview(data) if data is not None else memoryview(b""), bounds)


def _pack_maps(maps: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Per row, all its fields as packed arguments (binary), and how many they are (int32)."""
    bounds = maps.offsets.to_numpy()
    count = pa.array(np.diff(bounds))
    parts: list[pa.Array | pa.Scalar] = []
    for child in (maps.keys, maps.items):
        # A sliced map still has all its children.
        value = child.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).cast(pa.binary())
        size = pc.binary_length(value).cast(pa.string()).cast(pa.binary())
        value = pc.fill_null(value, b"")
        parts += [_scalar(b"$"), pc.fill_null(size, b"0"), _scalar(b"\r\n"), value, _scalar(b"\r\n")]
    pairs = pc.binary_join_element_wise(*parts, _EMPTY)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds - bounds[0]), pairs), _EMPTY), count


def _count_valid(values: Sequence[pa.Array], rows: int) -> pa.Array:
    count = np.full(rows, len(values), np.int32)
    for value in values:
        if value.null_count:
            count -= pc.is_null(value).to_numpy(zero_copy_only=False)
    return pa.array(count)


def _heads(stream: bytes, most_fields: int) -> pa.Array:
    """Per number of fields, the start of the command up to the id."""
    body = pack("XADD", stream, "*").split(b"\r\n", 1)[1]
    return pa.array([b"*%d\r\n%b" % (3 + 2 * fields, body) for fields in range(most_fields + 1)], pa.binary())
