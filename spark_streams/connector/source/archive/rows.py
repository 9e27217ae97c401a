"""Rows of an archive within ranges of IDs, in the order of IDs, as pages of entries with the bytes that the stream had.

files of a day ──► row groups, by their lowest ID ──► mask: in a range, and not read from the stream ──► pages
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from spark_streams.base.ids import U64_MAX, StreamId
from spark_streams.connector.errors import ArchiveError
from spark_streams.connector.source.archive import HEX, files
from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import Part
from spark_streams.connector.source.task.fetcher import FetchedPage, Fetcher
from spark_streams.connector.wire.entry_page import EntryPage, UInt64s, last_values
from spark_streams.connector.wire.lines import Index, Mask
from spark_streams.connector.wire.session import Session

_PAGE = 10_000  # rows
NO_GROUP = Membership("", "")  # reading ranges needs no group


class ArchivePage(EntryPage):
    """ids: string; fields: map of strings or of binaries, as the columns of the table."""

    def __init__(self, ids: pa.Array, fields: pa.MapArray) -> None:
        self._ids = ids
        self.count, self.deleted, self.last_id = len(ids), 0, None
        begin = fields.offsets[0].as_py() if len(ids) else 0
        length = fields.offsets[-1].as_py() - begin if len(ids) else 0
        offsets = pc.subtract(fields.offsets, pa.scalar(begin, pa.int32())) if len(ids) else pa.array([0], pa.int32())
        names, values = (part.slice(begin, length).cast(pa.binary()) for part in (fields.keys, fields.items))
        self._fields = (offsets, names, values)
        if not pa.types.is_binary(fields.type.key_type) and pc.any(pc.equal(names, HEX.encode())).as_py():
            self._fields = _without_hex(offsets, names, values)

    def rows_of(self, counts: Sequence[int]) -> Index:
        return np.array(counts, np.int64)

    def ids(self) -> pa.Array:
        return self._ids.cast(pa.binary())

    def milliseconds(self) -> UInt64s:
        return files.id_parts(self._ids)[0]

    def field(self, name: bytes) -> pa.Array:
        return last_values(self._fields, name)

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        return self._fields


def _without_hex(offsets: pa.Array, names: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the fields with those of `rstream:hex` in place of it. Such entries are rare: this works row by row."""
    bounds = offsets.to_pylist()
    pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    rows = []
    for begin, end in itertools.pairwise(bounds):
        fields = pairs[begin:end]
        if len(fields) == 1 and fields[0][0] == HEX.encode():
            words = [bytes.fromhex(word.decode()) for word in fields[0][1].split(b" ")]
            fields = list(zip(words[::2], words[1::2], strict=True))
        rows.append(fields)
    column = pa.array(rows, pa.map_(pa.binary(), pa.binary()))
    return column.offsets, column.keys, column.items


Rows = tuple[str | pa.Array, EntryPage]  # the stream of all entries or of each, and the entries


# -- rows of ranges ----------------------------------------------------------------------------------------------------


def rows_of(archive: files.ArchiveTable, ranges: Sequence[Range]) -> Iterator[Rows]:
    """Yield the archived entries of the ranges, in the order of their IDs.

    No batch that the job may still rewrite has an entry of these ranges. Raises ArchiveError.
    """
    try:
        for rows in in_order(archive, ranges, {}, files.COLUMNS):
            yield _page(rows)
    except FileNotFoundError as error:
        raise ArchiveError(
            f"file {error} of the archive was removed while it was read: run the read again, and remove old files only "
            "when no query reads them"
        ) from None


def rows_beside(archive: files.ArchiveTable, ranges: Sequence[Range], seen: Mapping[str, pa.Array]) -> list[Rows]:
    """Return the archived entries of the ranges that the stream did not have any more when it was read, in the order
    of their IDs.

    seen: IDs (binary) that were read, by stream. Batches that the job rewrites meanwhile have only entries that were
    read, so files that vanish are listed again. Raises ArchiveError.
    """
    return files.retrying(lambda: [_page(rows) for rows in in_order(archive, ranges, seen, files.COLUMNS)], archive)


def _page(rows: pa.RecordBatch) -> Rows:
    return rows["stream"].cast(pa.string()), ArchivePage(rows["id"], rows["fields"])


def in_order(
    archive: files.ArchiveTable, ranges: Sequence[Range], seen: Mapping[str, pa.Array], columns: Sequence[str]
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
            keys = file.read_row_group(group.number, columns=list(files.KEYS)).combine_chunks()
            parts = files.id_parts(keys["id"].combine_chunks())
            mask = _mask(keys["stream"].combine_chunks(), keys["id"].combine_chunks(), parts, ranges, seen)
            if held is None and _may_be_yielded_at_once(parts[0][mask], parts[1][mask], frontier):
                yield from _matching_pages(file, group.number, mask, columns)
            elif mask.any():
                rows = file.read_row_group(group.number, columns=list(columns)).filter(pa.array(mask))
                held = rows if held is None else pa.concat_tables([held, rows])
        if held is not None:
            ready, held = _divide(held, frontier)
            yield from ready.to_batches(_PAGE)


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
    ms, seq = files.id_parts(held["id"].combine_chunks())
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


# -- row groups of ranges ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowGroup:
    """A row group that may have an entry of the ranges."""

    path: str  # of its file
    metadata: pq.FileMetaData  # of its file
    number: int  # in its file
    lowest: int  # milliseconds that none of its IDs is below

    @property
    def entry_bytes(self) -> float:
        """Average size of an entry in the file, not compressed."""
        part = self.metadata.row_group(self.number)
        size: int = part.total_byte_size
        rows: int = part.num_rows
        return max(1.0, size / max(1, rows))


def first_row_group(archive: files.ArchiveTable, ranges: Sequence[Range]) -> RowGroup | None:
    """Return the row group with the lowest IDs. Raises ArchiveError."""
    store, _root = archive.store()
    return next((group for group, _frontier in _row_groups(archive, store, ranges)), None)


def _row_groups(
    archive: files.ArchiveTable, store: fs.FileSystem, ranges: Sequence[Range]
) -> Iterator[tuple[RowGroup, int | None]]:
    """Yield the row groups by their lowest IDs, each with milliseconds that no ID of a later one is below. None: there
    is no later one. Files are opened day by day."""
    if not ranges:
        return
    after, last = min(part.after for part in ranges), max(part.last for part in ranges)
    days = files.retrying(lambda: sorted({file.lowest for file in archive.files(after, last)}), archive)
    for day, next_day in zip_longest(days, days[1:]):
        groups = files.retrying(partial(_groups_of_day, archive, store, day, ranges), archive)
        yield from zip_longest(groups, (group.lowest for group in groups[1:]), fillvalue=next_day)


def _groups_of_day(
    archive: files.ArchiveTable, store: fs.FileSystem, day: int, ranges: Sequence[Range]
) -> list[RowGroup]:
    """Return the row groups of files of this day that may have an entry of the ranges by their statistics, by their
    lowest IDs."""
    groups = []
    for source in archive.files(StreamId(day, 0), StreamId(day, U64_MAX)):
        if source.lowest != day:
            continue
        with store.open_input_file(source.path) as opened:
            file = files.open_parquet(opened, source.path)
            for number in range(file.num_row_groups):
                bounds = files.id_bounds(file, number, source)
                if any(bounds.may_hold(part.stream, part.after, part.last) for part in ranges):
                    lowest = source.lowest if bounds.lowest is None else bounds.lowest
                    groups.append(RowGroup(source.path, file.metadata, number, lowest))
    return sorted(groups, key=lambda group: (group.lowest, group.path, group.number))


# -- read from streams -------------------------------------------------------------------------------------------------


class SeenIds:
    """IDs (binary), by stream, of the entries that a task has read from streams. The archive's are not read again."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.Array]] = {}

    def add(self, page: FetchedPage) -> None:
        ids = page.entries.ids()
        if isinstance(page.streams, str):
            self._parts.setdefault(page.streams, []).append(ids)
            return
        for stream in pc.unique(page.streams).to_pylist():
            self._parts.setdefault(stream, []).append(ids.filter(pc.equal(page.streams, stream)))

    def by_stream(self) -> Mapping[str, pa.Array]:
        return {stream: pa.concat_arrays(parts) for stream, parts in self._parts.items()}


def read_ids(session: Session, parts: Sequence[Part], limits: Limits = LIMITS) -> Mapping[str, pa.Array]:
    """Return the IDs of the entries that the streams have of these parts."""
    seen = SeenIds()
    for page in Fetcher(session, NO_GROUP, parts, deliveries=False, limits=limits).pages():
        if page.entries.count:
            seen.add(page)
    return seen.by_stream()
