"""Rows of an archive within ranges of IDs. Uses no server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from spark_streams.errors import ArchiveError
from spark_streams.model.ids import InvalidStreamId, StreamId
from spark_streams.source.archive.files import Archive, day_of
from spark_streams.source.archive.page import ArchivePage, id_parts
from spark_streams.source.entry_range import EntryRange
from spark_streams.wire.entries.entry_page import UInt64s
from spark_streams.wire.entries.lines import Mask

_T = TypeVar("_T")
Rows = tuple[pa.Array, ArchivePage]  # the stream of each entry, and the entries

_COLUMNS = ["stream", "id", "fields"]
_PAGE = 10_000  # rows
_ATTEMPTS = 5
# Between these days all times have 13 digits, so that texts of IDs have the order of their milliseconds.
_FIRST_DAY, _LAST_DAY = 1_000_080_000_000, 9_999_900_000_000


def rows_of(archive: Archive, ranges: Sequence[EntryRange]) -> Iterator[Rows]:
    """Yield the archived entries of the ranges, file by file.

    No batch that the job may still rewrite has an entry of these ranges. Raises ArchiveError.
    """
    store, _root = archive.store()
    path = ""
    try:
        for path in _retrying(lambda: _matching_files(archive, store, ranges), archive):
            yield from _rows_of_file(store, path, ranges, {})
    except FileNotFoundError:
        raise ArchiveError(
            f"file {path} of the archive was removed while it was read: run the read again, and remove old files only "
            "when no query reads them"
        ) from None


def rows_beside(archive: Archive, ranges: Sequence[EntryRange], seen: Mapping[str, pa.Array]) -> list[Rows]:
    """Return the archived entries of the ranges that the stream did not have any more when it was read.

    seen: IDs (binary) that were read, by stream. Batches that the job rewrites meanwhile have only entries that were
    read, so files that vanish are listed again. Raises ArchiveError.
    """
    store, _root = archive.store()

    def read() -> list[Rows]:
        paths = _matching_files(archive, store, ranges)
        return [rows for path in paths for rows in _rows_of_file(store, path, ranges, seen)]

    return _retrying(read, archive)


def _retrying(read: Callable[[], _T], archive: Archive) -> _T:
    for _ in range(_ATTEMPTS):
        try:
            return read()
        except FileNotFoundError:
            continue  # the job rewrites its last batch
    raise ArchiveError(f"files of the archive at {archive.path!r} vanish while they are read: run the read again")


def _matching_files(archive: Archive, store: fs.FileSystem, ranges: Sequence[EntryRange]) -> list[str]:
    """Return the files with a row group that may have an entry of a range."""
    after, last = min(part.after for part in ranges), max(part.last for part in ranges)
    paths = []
    for file in archive.files(after, last):
        with store.open_input_file(file.path) as opened:
            if _groups(_opened(opened, file.path), file.day, ranges):
                paths.append(file.path)
    return paths


def _rows_of_file(
    store: fs.FileSystem, path: str, ranges: Sequence[EntryRange], seen: Mapping[str, pa.Array]
) -> Iterator[Rows]:
    with store.open_input_file(path) as opened:
        file = _opened(opened, path)
        for group in _groups(file, day_of(path), ranges):
            keys = file.read_row_group(group, columns=_COLUMNS[:2])
            if not any(_mask(page, ranges, seen).any() for page in keys.to_batches()):
                continue
            for page in file.iter_batches(_PAGE, row_groups=[group], columns=_COLUMNS):
                rows = page.filter(pa.array(_mask(page, ranges, seen)))
                if rows.num_rows:
                    yield rows["stream"].cast(pa.string()), ArchivePage(rows["id"], rows["fields"])


def _opened(opened: pa.NativeFile, path: str) -> pq.ParquetFile:
    """Return the file. Raises ArchiveError if it is no file of an archive."""
    try:
        file = pq.ParquetFile(opened)
    except pa.ArrowInvalid as error:
        raise ArchiveError(f"file {path} of the archive is damaged: {error}") from None
    missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
    if missing:
        raise ArchiveError(f"file {path} has no column {missing[0]!r}: archivePath needs a table of the job archive")
    return file


def _groups(file: pq.ParquetFile, day: int | None, ranges: Sequence[EntryRange]) -> list[int]:
    """Return the row groups that may have an entry of a range, by their statistics."""
    column = {file.schema.column(number).path: number for number in range(len(file.schema))}
    groups = []
    for group in range(file.num_row_groups):
        metadata = file.metadata.row_group(group)
        streams, ids = (_bounds(metadata.column(column[name])) for name in ("stream", "id"))
        is_plain = ids is not None and day is not None and _FIRST_DAY <= day <= _LAST_DAY
        lowest, highest = (_milliseconds(bound) for bound in ids) if ids is not None and is_plain else (None, None)
        if any(
            (streams is None or streams[0] <= part.stream <= streams[1])
            and (lowest is None or lowest <= part.last.ms)
            and (highest is None or highest >= part.after.ms)
            for part in ranges
        ):
            groups.append(group)
    return groups


def _bounds(column: pq.ColumnChunkMetaData) -> tuple[str, str] | None:
    statistics = column.statistics
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def _milliseconds(entry_id: str) -> int | None:
    try:
        return StreamId.parse(entry_id).ms
    except InvalidStreamId:
        return None


def _mask(page: pa.RecordBatch, ranges: Sequence[EntryRange], seen: Mapping[str, pa.Array]) -> Mask:
    """Return which rows lie in a range and were not seen."""
    streams, ids = page["stream"], page["id"]
    mask: Mask = np.zeros(page.num_rows, np.bool_)
    present = set(pc.unique(streams).to_pylist())
    ours = [part for part in ranges if part.stream in present]
    if not ours:
        return mask
    ms, seq = id_parts(ids)
    for part in ours:
        inside = _is_above(ms, seq, part.after) & ~_is_above(ms, seq, part.last)
        mask |= inside & pc.equal(streams, part.stream).to_numpy(zero_copy_only=False)
    for stream in present & set(seen):
        is_read = pc.is_in(ids.cast(pa.binary()), seen[stream]).to_numpy(zero_copy_only=False)
        mask &= ~(is_read & pc.equal(streams, stream).to_numpy(zero_copy_only=False))
    return mask


def _is_above(ms: UInt64s, seq: UInt64s, entry_id: StreamId) -> Mask:
    above: Mask = (ms > np.uint64(entry_id.ms)) | ((ms == np.uint64(entry_id.ms)) & (seq > np.uint64(entry_id.seq)))
    return above
