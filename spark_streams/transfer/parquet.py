"""Entries of a Parquet file, in memory that does not depend on how well the file is compressed.

A file of two kilobytes may name one value a million times. So repeated values are read as indices into a dictionary.
Before they become objects of Python, their sizes are known, and rows are taken by their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_streams.errors import CopyFileError

FIELDS = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))
SCHEMA = pa.schema([("id", pa.string()), ("fields", FIELDS)])
_MAP = pa.map_(pa.binary(), pa.binary())
_PAGE = 1_000  # rows
PAGE_BYTES = 32 << 20
ENTRY_BYTES = 1 << 30  # a server takes values of 512 MB at most
GROUP_VALUES = 20_000_000  # names or values of a row group, of which a single row may have all

Row = tuple[str | None, Any]


def rows_of(file: IO[bytes], name: str) -> Iterator[list[Row]]:
    """Yield (ID, fields) of rows, some at a time. name: of the file. Raises CopyFileError, ArrowException."""
    _require_columns(pq.read_schema(file), name)
    file.seek(0)
    leaves = pq.ParquetFile(file).schema
    paths = [leaves.column(number).path for number in range(len(leaves))]
    parquet = pq.ParquetFile(file, read_dictionary=[path for path in paths if path.startswith("fields.")])
    for group in range(parquet.num_row_groups):
        metadata = parquet.metadata.row_group(group)
        values = max(metadata.column(number).num_values for number in range(metadata.num_columns))
        if values > GROUP_VALUES:
            raise CopyFileError(
                f"row group {group} of file {name!r} has {values:,} field values, more than the {GROUP_VALUES:,} that "
                "are read at once. Write the file with smaller row groups"
            )
        first = 0
        for batch in parquet.iter_batches(_PAGE, row_groups=[group], columns=SCHEMA.names):
            sizes = _sizes(batch.column("fields"))
            large = np.flatnonzero(sizes > ENTRY_BYTES)
            if len(large):
                raise CopyFileError(
                    f"row {first + int(large[0]) + 1:,} of row group {group} of file {name!r} has "
                    f"{int(sizes[large[0]]):,} bytes, more than the {ENTRY_BYTES:,} that an entry may have. Split it"
                )
            for begin, end in _parts(sizes):
                part = batch.slice(begin, end - begin)
                yield list(zip(part.column("id").to_pylist(), part.column("fields").to_pylist(), strict=True))
            first += batch.num_rows


def _require_columns(schema: pa.Schema, name: str) -> None:
    """Raise CopyFileError, which names the wrong column."""
    for wanted in SCHEMA:
        if schema.names.count(wanted.name) != 1:
            number = "no column" if wanted.name not in schema.names else "more than one column"
            raise CopyFileError(f"file {name!r} has {number} {wanted.name!r}. It needs {_SHAPE}")
        kind = schema.field(wanted.name).type
        allowed = (pa.string(), pa.large_string()) if wanted.name == "id" else (FIELDS, _MAP)
        if kind not in allowed:
            raise CopyFileError(f"column {wanted.name!r} of file {name!r} has type {kind}. It needs {_SHAPE}")


_SHAPE = "id STRING and fields LIST<STRUCT<name BINARY, value BINARY>> or MAP<BINARY, BINARY>: convert the file"


def _sizes(fields: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of names and values of each row."""
    if isinstance(fields, pa.MapArray):
        parts = [fields.keys, fields.items]
    else:
        parts = [fields.values.field(number) for number in range(2)]
    lengths = np.sum([_lengths(part) for part in parts], axis=0, dtype=np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    offsets = fields.offsets.to_numpy()
    sizes: np.ndarray[Any, np.dtype[np.int64]] = ends[offsets[1:]] - ends[offsets[:-1]]
    return sizes


def _lengths(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of each value, 0 for null."""
    if isinstance(array, pa.DictionaryArray):
        lengths = pc.binary_length(array.dictionary).take(array.indices)
    else:
        lengths = pc.binary_length(array)
    return np.asarray(lengths.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _parts(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of at most PAGE_BYTES, or of one row."""
    begin, filled = 0, 0
    for row, size in enumerate(sizes.tolist()):
        if row > begin and filled + size > PAGE_BYTES:
            yield begin, row
            begin, filled = row, 0
        filled += size
    if begin < len(sizes):
        yield begin, len(sizes)
