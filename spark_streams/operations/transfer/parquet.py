"""Entries as rows of Parquet: id STRING, fields LIST<STRUCT<name BINARY, value BINARY>>.

A file may also have MAP<BINARY, BINARY>, as the job `archive` writes with `fields = "binary"`. Other columns are not
read. Values are read as Parquet's dictionaries, in which a value that many rows share is stored once.

Nobody has checked the file. A few bytes of Parquet or JSON may stand for gigabytes, in ways that no check of the file's
head finds. So the operating system refuses the memory, while a part is read. Linux only: elsewhere nothing is limited.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_streams.operations.transfer.transferred import TransferEntry

T = TypeVar("T")

MOST_MEMORY = 512 << 20  # bytes for a part, beyond what the process has
_MAPPED = Path("/proc/self/statm")  # the first number: pages of this process


def limited(items: Iterable[T]) -> Iterator[T]:
    """Yield the items. Raises MemoryError if one takes more than MOST_MEMORY until it is there."""
    iterator = iter(items)
    while True:
        with limited_memory():
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


@contextmanager
def limited_memory() -> Iterator[None]:
    """Raise MemoryError if the block takes more than MOST_MEMORY."""
    if not _MAPPED.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(_MAPPED.read_text().split()[0]) * resource.getpagesize()
    limits = [limit for limit in (mapped + MOST_MEMORY, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


Row = tuple[bytes | None, list[bytes | None] | None]  # ID; name, value, name, value …

_FIELDS = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))
_SCHEMA = pa.schema([("id", pa.string()), ("fields", _FIELDS)])
_ROWS, _BATCH_BYTES, _PAGE_BYTES = 1_000, 32 << 20, 4 << 20  # of a batch that is read; of a page of rows
_BUFFER = 1 << 20
_MOST = 64 << 20  # bytes of a row
_OBJECT = 48  # bytes that a value of Python takes beyond its own
_SHOWN_COLUMNS, _SHOWN_LETTERS = 10, 200


class ColumnError(ValueError):
    """A file has other columns than an import reads."""


def parquet_writer(file: IO[bytes]) -> pq.ParquetWriter:
    """Return a writer of batches that `batch_of` returns."""
    return pq.ParquetWriter(file, _SCHEMA, compression="zstd")


def batch_of(entries: Sequence[TransferEntry]) -> pa.RecordBatch:
    """Return entries as rows."""
    names = [name for entry in entries for name in entry.fields[0::2]]
    values = [value for entry in entries for value in entry.fields[1::2]]
    offsets = list(accumulate((len(entry.fields) // 2 for entry in entries), initial=0))
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.binary()), pa.array(values, pa.binary())], ["name", "value"])
    fields = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs)
    return pa.record_batch([pa.array([str(entry.id) for entry in entries]), fields], schema=_SCHEMA)


def pages_of_rows(file: IO[bytes]) -> Iterator[Sequence[Row | None]]:
    """Yield the rows of each row group; None is a row that is too large.

    Raises ColumnError, MemoryError, and what Arrow raises: OSError, ValueError, pa.ArrowException."""
    for batch in limited(_batches(file)):
        yield from _pages(batch)


def entry_of_row(row: Row | None) -> TransferEntry:
    """Return the entry of a row. Raises ValueError."""
    if row is None:
        raise ValueError(f"it has more than {_MOST >> 20} MiB; leave it out, or copy it by rstream copy")
    entry_id, words = row
    if entry_id is None or words is None or None in words:
        raise ValueError("it has a null")
    return TransferEntry.parse(entry_id, cast("list[bytes]", words))


# -- columns --------------------------------------------------------------------------------------------------------


def _check_columns(schema: pa.Schema) -> None:
    """Raise ColumnError, which names the column and what to do."""
    for field, is_right in zip(_SCHEMA, (_are_ids, _are_fields), strict=True):
        types, is_ids = [column.type for column in schema if column.name == field.name], is_right is _are_ids
        if not types:
            names = ", ".join(repr(name)[:_SHOWN_LETTERS] for name in schema.names[:_SHOWN_COLUMNS])
            more = len(schema.names) - _SHOWN_COLUMNS
            has = f"{names or 'none'}{f' and {more:,} more' if more > 0 else ''}"
            raise ColumnError(f"it has no column {field.name!r} (its columns: {has}); name the column {field.name!r}")
        if len(types) > 1:
            raise ColumnError(f"it has {len(types):,} columns {field.name!r}; leave one of them")
        if not is_right(types[0]):
            raise ColumnError(
                f"its column {field.name!r} has the type {str(types[0])[:_SHOWN_LETTERS]}; "
                f"write it as {'string' if is_ids else f'{field.type} or {pa.map_(pa.binary(), pa.binary())}'}"
            )


def _are_ids(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string())


def _are_fields(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return bool(kind.key_type == kind.item_type == pa.binary())
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    return [(part.name, part.type) for part in kind.value_type] == [("name", pa.binary()), ("value", pa.binary())]


def _leaves(metadata: pq.FileMetaData) -> list[str]:
    """Return the paths of the two columns' values."""
    paths = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
    return [path for path in paths if path.split(".")[0] in _SCHEMA.names]


# -- sizes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RowBatch:
    """Rows that were read."""

    ids: pa.DictionaryArray
    is_valid: pa.BooleanArray
    names: pa.DictionaryArray  # of all rows
    values: pa.DictionaryArray  # of all rows
    offsets: npt.NDArray[np.int64]  # where those of each row begin
    ends: npt.NDArray[np.int64]  # where each row ends, in bytes


def _batches(file: IO[bytes]) -> Iterator[_RowBatch]:
    _check_columns(pq.ParquetFile(file).schema_arrow)
    parquet = pq.ParquetFile(file, read_dictionary=_leaves(pq.read_metadata(file)), buffer_size=_BUFFER)
    for group in range(parquet.num_row_groups):
        rows = _batch_rows(parquet.metadata.row_group(group))
        # The threads of a pool would each take memory of their own.
        for batch in parquet.iter_batches(rows, row_groups=[group], columns=_SCHEMA.names, use_threads=False):
            ids, fields = batch.column("id"), batch.column("fields")
            names, values = fields.values.flatten()
            offsets = fields.offsets.to_numpy().astype(np.int64)
            pairs = np.concatenate([[0], np.cumsum(_sizes(names) + _sizes(values))])
            ends = np.cumsum(_sizes(ids) + pairs[offsets[1:]] - pairs[offsets[:-1]])
            yield _RowBatch(ids, fields.is_valid(), names, values, offsets, ends)


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """Return how many rows are read at a time, by their average size."""
    columns = [group.column(number) for number in range(group.num_columns)]
    size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in _SCHEMA.names)
    rows = _BATCH_BYTES * max(1, group.num_rows) // max(1, size)
    return int(max(1, min(_ROWS, rows)))


def _sizes(column: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Return how many bytes each value has as an object."""
    lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
    return cast("npt.NDArray[np.int64]", pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False) + np.int64(_OBJECT))


def _pages(batch: _RowBatch) -> Iterator[Sequence[Row | None]]:
    """Yield the rows in pages of limited size, of one row at least."""
    begin = 0
    while begin < len(batch.ids):
        before = int(batch.ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(batch.ends, before + _PAGE_BYTES, side="right")))
        if int(batch.ends[begin]) - before > _MOST:
            yield [None]
        else:
            yield _rows(batch, begin, end)
        begin = end


def _rows(batch: _RowBatch, begin: int, end: int) -> list[Row]:
    first, count = int(batch.offsets[begin]), int(batch.offsets[end] - batch.offsets[begin])
    words: list[bytes | None] = [None] * (2 * count)
    words[0::2], words[1::2] = (_bytes(column.slice(first, count)) for column in (batch.names, batch.values))
    places = (2 * (batch.offsets[begin : end + 1] - first)).tolist()
    ids, are_valid = _bytes(batch.ids.slice(begin, end - begin)), batch.is_valid.slice(begin, end - begin).to_pylist()
    return [
        (entry_id, words[start:stop] if is_valid else None)
        for entry_id, (start, stop), is_valid in zip(ids, pairwise(places), are_valid, strict=True)
    ]


def _bytes(column: pa.DictionaryArray) -> list[bytes | None]:
    return cast("list[bytes | None]", column.dictionary_decode().cast(pa.binary()).to_pylist())
