"""Rows of an archive within ranges of IDs. Uses no server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from spark_streams.base.ids import MAX_ID, U64_MAX, InvalidStreamId, StreamId
from spark_streams.connector.errors import ArchiveError
from spark_streams.connector.source.archive.files import Archive, ArchiveFile
from spark_streams.connector.source.archive.page import ArchivePage, id_parts
from spark_streams.connector.source.offset import Range
from spark_streams.connector.wire.entries.entry_page import UInt64s
from spark_streams.connector.wire.entries.lines import Mask

_T = TypeVar("_T")
Rows = tuple[pa.Array, ArchivePage]  # the stream of each entry, and the entries

KEYS = ("stream", "id")
_COLUMNS = (*KEYS, "fields")
_PAGE = 10_000  # rows
_ATTEMPTS = 5
# Between these days all times have 13 digits, so that texts of IDs have the order of their milliseconds.
_FIRST_DAY, _LAST_DAY = 1_000_080_000_000, 9_999_900_000_000


def rows_of(archive: Archive, ranges: Sequence[Range]) -> Iterator[Rows]:
    """Yield the archived entries of the ranges, in the order of their IDs.

    No batch that the job may still rewrite has an entry of these ranges. Raises ArchiveError.
    """
    try:
        for rows in in_order(archive, ranges, {}, _COLUMNS):
            yield _page(rows)
    except FileNotFoundError as error:
        raise ArchiveError(
            f"file {error} of the archive was removed while it was read: run the read again, and remove old files only "
            "when no query reads them"
        ) from None


def rows_beside(archive: Archive, ranges: Sequence[Range], seen: Mapping[str, pa.Array]) -> list[Rows]:
    """Return the archived entries of the ranges that the stream did not have any more when it was read, in the order
    of their IDs.

    seen: IDs (binary) that were read, by stream. Batches that the job rewrites meanwhile have only entries that were
    read, so files that vanish are listed again. Raises ArchiveError.
    """
    return retrying(lambda: [_page(rows) for rows in in_order(archive, ranges, seen, _COLUMNS)], archive)


def in_order(
    archive: Archive, ranges: Sequence[Range], seen: Mapping[str, pa.Array], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of the archive in the order of their IDs. seen: IDs (binary) to leave out, by stream.

    Row groups are read by their lowest ID. Rows at or above the lowest ID of the next row group are held until it is
    read, so memory has the row groups that overlap. Raises ArchiveError, and FileNotFoundError if a file was removed.
    """
    store, _root = archive.store()
    held: pa.Table | None = None
    for group, frontier in _row_groups(archive, store, ranges):
        with store.open_input_file(group.path) as opened:
            file = pq.ParquetFile(opened, metadata=group.metadata)
            keys = file.read_row_group(group.number, columns=list(KEYS)).combine_chunks()
            parts = id_parts(keys["id"].combine_chunks())
            mask = _mask(keys["stream"].combine_chunks(), keys["id"].combine_chunks(), parts, ranges, seen)
            if held is None and _may_be_yielded_at_once(parts[0][mask], parts[1][mask], frontier):
                yield from _matching_pages(file, group.number, mask, columns)
            elif mask.any():
                rows = file.read_row_group(group.number, columns=list(columns)).filter(pa.array(mask))
                held = rows if held is None else pa.concat_tables([held, rows])
        if held is not None:
            ready, held = _divide(held, frontier)
            yield from ready.to_batches(_PAGE)


def _page(rows: pa.RecordBatch) -> Rows:
    return rows["stream"].cast(pa.string()), ArchivePage(rows["id"], rows["fields"])


def _may_be_yielded_at_once(ms: UInt64s, seq: UInt64s, frontier: int | None) -> bool:
    """Whether these IDs are in order, without equal ones, and below the frontier."""
    follows = (ms[1:] > ms[:-1]) | ((ms[1:] == ms[:-1]) & (seq[1:] > seq[:-1]))
    return bool(follows.all() and (frontier is None or not len(ms) or ms[-1] < np.uint64(frontier)))


def _matching_pages(file: pq.ParquetFile, group: int, mask: Mask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    begin = 0
    if not mask.any():
        return
    for page in file.iter_batches(_PAGE, row_groups=[group], columns=list(columns)):
        rows = page.filter(pa.array(mask[begin : begin + page.num_rows]))
        begin += page.num_rows
        if rows.num_rows:
            yield rows


def _divide(held: pa.Table, frontier: int | None) -> tuple[pa.Table, pa.Table | None]:
    """Return the rows below the frontier, in the order of their IDs and streams, and the others. A row that the archive
    has twice is returned once. Raises ArchiveError."""
    ms, seq = id_parts(held["id"].combine_chunks())
    streams = pc.rank(held["stream"].combine_chunks().cast(pa.string()), tiebreaker="dense").to_numpy()
    order = np.lexsort((streams, seq, ms))
    count = len(order) if frontier is None else int(np.searchsorted(ms[order], np.uint64(frontier)))
    rest = None if count == len(order) else held.take(pa.array(order[count:]))
    order = order[:count]
    is_first = np.ones(count, np.bool_)
    is_first[1:] = (np.diff(ms[order]) != 0) | (np.diff(seq[order]) != 0) | (np.diff(streams[order]) != 0)
    for place in np.flatnonzero(~is_first):
        _require_same(held.take(pa.array(order[place - 1 : place + 1])))
    return held.take(pa.array(order[is_first])), rest


def _require_same(rows: pa.Table) -> None:
    """Raise ArchiveError if two rows of one ID have different fields. The job archives an entry again if its stream and
    its group were restored to an older state."""
    if "fields" in rows.column_names:
        first, second = rows["fields"].to_pylist()
        if first != second:
            stream, entry_id = rows["stream"][0].as_py(), rows["id"][0].as_py()
            raise ArchiveError(
                f"the archive has two different entries with ID {entry_id} of stream {stream!r}: the stream was "
                "restored to an older state, and new entries got old IDs. The read cannot tell which one is valid. "
                "Read the table with spark.read and keep one of them, or set startingOffsets above this ID"
            )


def retrying(read: Callable[[], _T], archive: Archive) -> _T:
    """Read again while the job rewrites its last batch. Raises ArchiveError."""
    for _ in range(_ATTEMPTS):
        try:
            return read()
        except FileNotFoundError:
            continue  # the job rewrites its last batch
    raise ArchiveError(f"files of the archive at {archive.path!r} vanish while they are read: run the read again")


@dataclass(frozen=True)
class RowGroup:
    """A row group that may have an entry of the ranges. lowest: milliseconds that none of its IDs is below."""

    path: str
    metadata: pq.FileMetaData
    number: int
    lowest: int

    @property
    def entry_bytes(self) -> float:
        """Average size of an entry in the file, not compressed."""
        part = self.metadata.row_group(self.number)
        size: int = part.total_byte_size
        rows: int = part.num_rows
        return max(1.0, size / max(1, rows))


def first_row_group(archive: Archive, ranges: Sequence[Range]) -> RowGroup | None:
    """Return the row group with the lowest IDs. Raises ArchiveError."""
    store, _root = archive.store()
    return next((group for group, _frontier in _row_groups(archive, store, ranges)), None)


def _row_groups(
    archive: Archive, store: fs.FileSystem, ranges: Sequence[Range]
) -> Iterator[tuple[RowGroup, int | None]]:
    """Yield the row groups by their lowest IDs, each with milliseconds that no ID of a later one is below. None: there
    is no later one. Files are opened day by day."""

    def days() -> list[int]:
        return sorted({_day(file) for file in archive.files(after, last)})

    def groups_of(day: int) -> list[RowGroup]:
        groups = []
        for file in archive.files(StreamId(day, 0), StreamId(day, U64_MAX)):
            if _day(file) == day:
                with store.open_input_file(file.path) as opened:
                    groups += _groups(open_parquet(opened, file.path), file, ranges)
        return sorted(groups, key=lambda group: (group.lowest, group.path, group.number))

    if not ranges:
        return
    after, last = min(part.after for part in ranges), max(part.last for part in ranges)
    all_days = retrying(days, archive)
    for day, next_day in zip_longest(all_days, all_days[1:]):
        groups = retrying(partial(groups_of, day), archive)
        yield from zip_longest(groups, (group.lowest for group in groups[1:]), fillvalue=next_day)


def _day(file: ArchiveFile) -> int:
    """Return the first millisecond of the file's day; 0 for IDs that are no time, which may be any."""
    return 0 if file.day is None else file.day


def open_parquet(opened: pa.NativeFile, path: str) -> pq.ParquetFile:
    """Return the file. Raises ArchiveError if it is no file of an archive."""
    try:
        file = pq.ParquetFile(opened)
    except pa.ArrowInvalid as error:
        raise ArchiveError(f"file {path} of the archive is damaged: {error}") from None
    missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
    if missing:
        raise ArchiveError(f"file {path} has no column {missing[0]!r}: archivePath needs a table of the job archive")
    return file


@dataclass(frozen=True)
class IdBounds:
    """Bounds of a row group by its statistics, None: unknown. streams: first and last name; lowest, highest:
    milliseconds."""

    streams: tuple[str, str] | None
    lowest: int | None
    highest: int | None

    def may_hold(self, stream: str, after: StreamId, last: StreamId = MAX_ID) -> bool:
        """Whether the row group may have an ID of the stream with after < ID ≤ last."""
        return (
            (self.streams is None or self.streams[0] <= stream <= self.streams[1])
            and (self.lowest is None or self.lowest <= last.ms)
            and (self.highest is None or self.highest >= after.ms)
        )


def id_bounds(file: pq.ParquetFile, number: int, source: ArchiveFile) -> IdBounds:
    """Return the bounds of a row group. Texts of IDs have the order of IDs only if they are plain times."""
    column = {file.schema.column(position).path: position for position in range(len(file.schema))}
    metadata = file.metadata.row_group(number)
    streams, ids = (_bounds(metadata.column(column[name])) for name in KEYS)
    is_plain = ids is not None and source.day is not None and _FIRST_DAY <= source.day <= _LAST_DAY
    lowest, highest = (_milliseconds(bound) for bound in ids) if ids is not None and is_plain else (None, None)
    return IdBounds(streams, lowest, highest)


def _groups(file: pq.ParquetFile, source: ArchiveFile, ranges: Sequence[Range]) -> list[RowGroup]:
    """Return the row groups that may have an entry of the ranges, by their statistics."""
    groups = []
    for number in range(file.num_row_groups):
        bounds = id_bounds(file, number, source)
        if any(bounds.may_hold(part.stream, part.after, part.last) for part in ranges):
            lowest = _day(source) if bounds.lowest is None else bounds.lowest
            groups.append(RowGroup(source.path, file.metadata, number, lowest))
    return groups


def _bounds(column: pq.ColumnChunkMetaData) -> tuple[str, str] | None:
    statistics = column.statistics
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def _milliseconds(entry_id: str) -> int | None:
    try:
        return StreamId.parse(entry_id).ms
    except InvalidStreamId:
        return None


def _mask(
    streams: pa.Array,
    ids: pa.Array,
    parts: tuple[UInt64s, UInt64s],
    ranges: Sequence[Range],
    seen: Mapping[str, pa.Array],
) -> Mask:
    """Return which rows lie in a range and were not seen. parts: of the IDs, as `id_parts` returns them."""
    mask: Mask = np.zeros(len(ids), np.bool_)
    present = set(pc.unique(streams).to_pylist())
    for part in ranges:
        if part.stream in present:
            inside = _is_above(*parts, part.after) & ~_is_above(*parts, part.last)
            mask |= inside & pc.equal(streams, part.stream).to_numpy(zero_copy_only=False)
    for stream in present & set(seen):
        is_read = pc.is_in(ids.cast(pa.binary()), seen[stream]).to_numpy(zero_copy_only=False)
        mask &= ~(is_read & pc.equal(streams, stream).to_numpy(zero_copy_only=False))
    return mask


def _is_above(ms: UInt64s, seq: UInt64s, entry_id: StreamId) -> Mask:
    above: Mask = (ms > np.uint64(entry_id.ms)) | ((ms == np.uint64(entry_id.ms)) & (seq > np.uint64(entry_id.seq)))
    return above
