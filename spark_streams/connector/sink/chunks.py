"""Record batches cut into chunks: the unit that a task sends, with a ledger in one transaction.

Stream and ID of each row come from option `stream`, or from the columns that options name (Destination). The sink never
uses a column because of its name. The source provides columns `_stream` and `_id`: a sink that followed them would
write each row to the stream that it was read from.

If a column names the stream of each row, the rows of a batch are ordered by stream. The batch is encoded as a whole,
and cut after `chunkSize` rows or 8 MB. A batch whose encoding would not fit Arrow's offsets is cut before. Pure, except
for `Destination.make_ready`: Arrow in, bytes out.
"""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.errors import EntryIdError, InvalidOptionError, SchemaError
from spark_streams.connector.keys import slot_of
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.shards.shard_sets import ensure_shards, require_plain
from spark_streams.connector.sink.fields import FIELDS, USES_OF_COLUMN, text_columns, text_of
from spark_streams.connector.sink.fingerprint import Hashes, Mask, row_hashes
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.xadd_bytes import Requests, encode_xadd, pack_maps

MAX_BYTES = 8 << 20  # of a chunk, unless a single row is larger
_PIECE = 128 << 20  # bytes of Arrow data that are encoded at once: the text is a few times as long at most
_ID_FORM = r"^[0-9]{1,20}(-([0-9]{1,20}|\*))?$"

Rows: TypeAlias = npt.NDArray[np.int64]
_Kept: TypeAlias = slice | Mask  # which rows


@dataclass(frozen=True)
class Destination:
    """Stream and ID of each row. None: not set."""

    stream: str | None = None  # of rows that name none
    stream_column: str | None = None  # a column of strings with the stream of a row; no field
    id_column: str | None = None  # a column of strings with the ID of a row; no field
    shards: int | None = None  # number of streams that make up `stream`
    shard_by: str | None = None  # the column whose value decides about a row's shard; also a field

    @classmethod
    def from_options(cls, options: SinkOptions) -> Self:
        return cls(options.stream, options.stream_column, options.id_column, options.shards, options.shard_by)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are not fields."""
        return tuple(name for name in (self.stream_column, self.id_column) if name is not None)

    @property
    def shown(self) -> str:
        """The streams' names in messages."""
        if self.shards is not None:
            return f"stream {self.stream!r} in {self.shards} shards"
        named = [] if self.stream_column is None else [f"the streams that column {self.stream_column!r} names"]
        return ", else ".join([*named, *([] if self.stream is None else [f"stream {self.stream!r}"])]) or "it"

    def make_ready(self, server: Server) -> None:
        """Create the shards, or require that the stream has none; on the driver, before tasks write. Raises ShardsError
        and the errors of `ensure_shards`."""
        if self.stream is not None and self.shards is not None:
            ensure_shards(server, self.stream, self.shards, self.shard_by)
        elif self.stream is not None:
            require_plain(server, self.stream)

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises InvalidOptionError if no option names a stream or a named column is missing, SchemaError if the column
        does not hold strings."""
        if self.stream is None and self.stream_column is None:
            remedy = "Set option stream to a stream, or streamColumn to a column with the stream of each row"
            if "_stream" in schema.names:
                remedy = f"Set option stream and drop column '_stream', or set {USES_OF_COLUMN['_stream']}"
            raise InvalidOptionError(f"neither option stream nor streamColumn is set, so rows have no stream. {remedy}")
        for option, name in (("streamColumn", self.stream_column), ("idColumn", self.id_column)):
            if name is not None:
                kind = _only_column(option, name, schema)
                if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                    raise SchemaError(
                        f"column {name!r}, which option {option} names, must be a string, not {kind}. Cast it"
                    )
        if self.shard_by is not None:
            kind = _only_column("shardBy", self.shard_by, schema)
            if self.shard_by == FIELDS and pa.types.is_map(kind):
                raise SchemaError(
                    f"column {FIELDS!r}, which option shardBy names, holds several fields. Copy the key into a column "
                    "of its own"
                )


def _only_column(option: str, name: str, schema: pa.Schema) -> pa.DataType:
    """Return the type of the column with this name. Raises InvalidOptionError, SchemaError."""
    indices = schema.get_all_field_indices(name)
    if not indices:
        near = difflib.get_close_matches(name.lower(), {column.lower(): column for column in schema.names}, n=1)
        hint = next((f" Did you mean {column!r}?" for column in schema.names if near == [column.lower()]), "")
        raise InvalidOptionError(
            f"sink option {option}={name!r} names a column that the rows do not have.{hint} They have "
            f"{', '.join(schema.names)} (rstream help options#{option})"
        )
    if len(indices) > 1:
        raise SchemaError(f"the rows have {len(indices)} columns {name!r}, which option {option} names. Rename one")
    return schema.field(indices[0]).type


@dataclass(frozen=True)
class OwnIds:
    """Explicit IDs. values: per row its ID or null; column: the column that holds them."""

    values: pa.Array
    column: str


@dataclass(frozen=True)
class Chunk:
    """Rows that are sent together."""

    requests: Requests  # their XADDs
    streams: Sequence[bytes]  # names of their streams
    codes: npt.NDArray[np.int32]  # per row the index of its stream in `streams`, ascending
    rows: Rows  # per row its number within the task
    hashes: Hashes | None  # per row its fingerprint; None without a ledger
    ids: OwnIds | None  # None if no column holds IDs

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def segments(self) -> list[tuple[bytes, int, int]]:
        """(stream, start, stop) of adjacent rows."""
        if not len(self):
            return []
        if len(self.streams) == 1:
            return [(self.streams[0], 0, len(self))]
        borders = [0, *(np.flatnonzero(np.diff(self.codes)) + 1).tolist(), len(self)]
        first = self.codes[borders[:-1]].tolist()
        return [
            (self.streams[code], start, stop)
            for code, start, stop in zip(first, borders[:-1], borders[1:], strict=True)
        ]

    @cached_property
    def stream_names(self) -> list[bytes]:
        """The stream of each segment."""
        return [stream for stream, _, _ in self.segments]

    def slice(self, start: int, stop: int) -> Chunk:
        """Return rows start … stop-1."""
        requests = Requests(self.requests.data, self.requests.offsets[start : stop + 1])
        ids = None if self.ids is None else OwnIds(self.ids.values.slice(start, stop - start), self.ids.column)
        return self._part(slice(start, stop), requests, ids)

    def filter(self, mask: Mask) -> Chunk:
        """Return a chunk of only these rows."""
        if mask.all():
            return self
        bounds = self.requests.offsets
        spans = pa.Array.from_buffers(
            pa.large_binary(), len(self), [None, pa.py_buffer(bounds), pa.py_buffer(self.requests.data)]
        ).filter(pa.array(mask))
        _, offsets, data = spans.buffers()
        kept_bounds = np.frombuffer(offsets, np.int64)[spans.offset : spans.offset + len(spans) + 1]
        requests = Requests(memoryview(data) if data is not None else memoryview(b""), kept_bounds)
        ids = None if self.ids is None else OwnIds(self.ids.values.filter(pa.array(mask)), self.ids.column)
        return self._part(mask, requests, ids)

    def _part(self, kept: _Kept, requests: Requests, ids: OwnIds | None) -> Chunk:
        hashes = None if self.hashes is None else self.hashes[kept]
        return Chunk(requests, self.streams, self.codes[kept], self.rows[kept], hashes, ids)


def encode_chunks(
    batches: Iterable[pa.RecordBatch], to: Destination, nulls: str, size: int, fingerprints: bool
) -> Iterator[Chunk]:
    """Yield all rows, in chunks of `size`. to: the batches' schema was checked with it; nulls: `omit` or `empty`.

    Raises SchemaError, EntryIdError for a row that cannot be an entry, before any row of its batch is yielded.
    """
    before = 0
    for batch in batches:
        for piece in _pieces(batch):
            encoded = _encode(piece, before, to, nulls, fingerprints)
            before += len(piece)
            yield from cut(encoded, size, MAX_BYTES)


def split_by_slot(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the same rows in chunks of one cluster slot each: a transaction cannot span slots."""
    for chunk in chunks:
        slots = np.array([slot_of(stream) for stream in chunk.streams])[chunk.codes]
        for slot in dict.fromkeys(slots.tolist()):
            yield chunk.filter(slots == slot)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = len(batch)
    per_piece = max(1, rows * _PIECE // max(batch.nbytes, 1))
    for start in range(0, rows, per_piece):
        yield batch.slice(start, per_piece)


def _encode(batch: pa.RecordBatch, before: int, to: Destination, nulls: str, fingerprints: bool) -> Chunk:
    rows = np.arange(before, before + len(batch))
    target: bytes | pa.DictionaryArray
    if to.stream_column is not None or to.shards is not None:
        codes, names = _shards(batch, to) if to.shards is not None else _streams(batch, before, to)
        order = np.argsort(codes, kind="stable")
        if (np.diff(order) != 1).any():
            batch, rows, codes = batch.take(pa.array(order)), rows[order], codes[order]
        target = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.binary()))
    else:
        names, codes = [(to.stream or "").encode()], np.zeros(len(batch), np.int32)
        target = names[0]
    ids = None if to.id_column is None else _checked_ids(batch.column(to.id_column), rows, to.id_column)
    fields = text_columns(batch, nulls, to.columns)
    requests, filled = encode_xadd(target, fields.names, fields.values, fields.first, ids)
    empty = np.flatnonzero(filled.to_numpy() == 0)
    if len(empty):
        raise SchemaError(
            f"row {rows[empty[0]]} of this task has only nulls, but an entry needs at least one field. Filter such "
            "rows out, or set nulls=empty"
        )
    hashes = None
    if fingerprints:
        columns = [value.cast(pa.binary()) for value in fields.values]
        if fields.first is not None:
            columns.append(pack_maps(fields.first)[0])
        if ids is not None:
            columns.append(ids.cast(pa.binary()))
        hashes = row_hashes(columns)
    own_ids = None if ids is None or to.id_column is None else OwnIds(ids, to.id_column)
    return Chunk(requests, names, codes, rows, hashes, own_ids)


def _shards(batch: pa.RecordBatch, to: Destination) -> tuple[npt.NDArray[np.int32], list[bytes]]:
    """Return (per row the number of its shard, the names of all shards)."""
    assert to.shards is not None
    names = [name.encode() for name in shards_of(to.stream or "", to.shards)]
    return shards_of_keys(text_of(batch.column(to.shard_by)), to.shards), names


def _streams(batch: pa.RecordBatch, before: int, to: Destination) -> tuple[npt.NDArray[np.int32], list[bytes]]:
    """Return (per row the index of its stream's name, the names). Raises SchemaError if a row names no stream."""
    column = batch.column(to.stream_column)
    if column.null_count and to.stream is not None:
        column = pc.fill_null(column, to.stream)
    nameless = pc.or_kleene(pc.is_null(column), pc.equal(column, ""))
    if pc.any(nameless).as_py():
        row = before + pc.index(pc.fill_null(nameless, True), True).as_py()
        raise SchemaError(
            f"row {row} of this task names no stream in column {to.stream_column!r}. Fill the column, or set option "
            "stream for rows in which it is null"
        )
    coded = column.dictionary_encode()
    return coded.indices.to_numpy().astype(np.int32), [name.encode() for name in coded.dictionary.to_pylist()]


def _checked_ids(ids: pa.Array, rows: Rows, column: str) -> pa.Array:
    wrong = pc.invert(pc.fill_null(pc.match_substring_regex(ids, _ID_FORM), True))
    if pc.any(wrong).as_py():
        index = pc.index(wrong, True).as_py()
        raise EntryIdError(
            f"row {rows[index]} of this task has the ID {ids[index].as_py()[:80]!r} in column {column!r}, which is not "
            "an entry ID. Write <milliseconds>-<sequence>, <milliseconds>-* or <milliseconds>, or null for an ID of "
            "the server"
        )
    return ids


def cut(chunk: Chunk, size: int, max_bytes: int) -> Iterator[Chunk]:
    """Yield the same rows in pieces of at most this many rows and bytes; a larger row is a piece of its own."""
    start, offsets = 0, chunk.requests.offsets
    while start < len(chunk):
        full = int(np.searchsorted(offsets, offsets[start] + max_bytes, "right")) - 1
        stop = max(start + 1, min(start + size, full, len(chunk)))
        yield chunk.slice(start, stop)
        start = stop


# -- the shard of each row, by its key ---------------------------------------------------------------------------------

_AT_ONCE = 64  # bytes of a key; further bytes are computed key by key


def _table() -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of each single byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> np.uint32(1)), table >> np.uint32(1))
    return table


_TABLE = _table()


def shards_of_keys(keys: pa.Array, count: int) -> npt.NDArray[np.int32]:
    """Return per row the number of its shard. keys: strings or binaries, as written; null counts as an empty key."""
    return (crc32(keys) % np.uint32(count)).astype(np.int32)


def crc32(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Return per row the CRC-32 of its bytes (that of zlib, gzip and PNG); 0 for null.

    It is computed for all rows at once, byte by byte of the keys. Keys of up to 64 bytes become no Python objects.
    10,000 keys of 12 bytes take 1.4 ms, however often they repeat.
    """
    keys = pc.fill_null(keys.cast(pa.large_binary()), b"")
    _, offsets, values = keys.buffers()
    borders = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(values if values is not None else b"", np.uint8)
    lengths = np.diff(borders)
    order = np.argsort(-lengths, kind="stable")  # the longest keys first
    starts, falling = borders[:-1][order], -lengths[order]
    state = np.full(len(keys), 0xFFFFFFFF, np.uint32)
    for place in range(min(int(lengths.max(initial=0)), _AT_ONCE)):
        longer = int(np.searchsorted(falling, -place, "left"))
        now = state[:longer]
        state[:longer] = _TABLE[(now ^ data[starts[:longer] + place]) & np.uint32(0xFF)] ^ (now >> np.uint32(8))
    checksums = np.empty(len(keys), np.uint32)
    checksums[order] = ~state
    for row in np.flatnonzero(lengths > _AT_ONCE).tolist():
        checksums[row] = zlib.crc32(data[borders[row] + _AT_ONCE : borders[row + 1]].tobytes(), int(checksums[row]))
    return checksums
