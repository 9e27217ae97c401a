"""The table that the job `archive` writes: its files, Parquet by date and batch, or Delta, and which IDs they may have.

The files of a batch that is in Spark's commit log never change. The job removes and rewrites the files of its last
batch only if that batch is not in the log; the stream still holds all its entries.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from spark_streams.base.extras import command_for
from spark_streams.base.ids import MAX_ID, MIN_ID, InvalidStreamId, StreamId
from spark_streams.connector.errors import ArchiveError
from spark_streams.connector.wire.entry_page import UInt64s

DAY = 86_400_000  # milliseconds
_DATE = "date="
_ATTEMPTS = 5
# Features of Delta that do not change which rows a data file has.
_HARMLESS = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
KEYS = ("stream", "id")
COLUMNS = (*KEYS, "fields")
# Between these days all times have 13 digits, so that texts of IDs have the order of their milliseconds.
_FIRST_DAY, _LAST_DAY = 1_000_080_000_000, 9_999_900_000_000
_T = TypeVar("_T")
Matches = Callable[[str], bool]


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArchiveFile:
    path: str
    size: int  # bytes
    day: int | None  # its first millisecond, None if its rows have no date

    @property
    def lowest(self) -> int:
        """Milliseconds that none of its IDs is below: 0 for IDs that are no time, which may be any."""
        return 0 if self.day is None else self.day

    def may_hold(self, after: StreamId, last: StreamId) -> bool:
        """Whether the file may have an ID with after < ID ≤ last."""
        return self.day is None or (self.day + DAY > after.ms and self.day <= last.ms)


@dataclass(frozen=True)
class ArchiveTable:
    """The table at a path: a folder, or a URI that pyarrow reads. path: as option archivePath is parsed."""

    path: str

    def store(self) -> tuple[fs.FileSystem, str]:
        """Return the file system and the path within it. Raises ArchiveError."""
        try:
            store, root = fs.FileSystem.from_uri(self.path) if "://" in self.path else (fs.LocalFileSystem(), self.path)
            kind = store.get_file_info(root).type
        except (OSError, ValueError) as error:
            raise ArchiveError(
                f"archivePath {self.path!r} cannot be opened: {error}; check the path and its rights"
            ) from None
        if kind != fs.FileType.Directory:
            raise ArchiveError(
                f"archivePath {self.path!r} is not a folder here: name the path of the archive's table, and make it "
                "readable for the driver and the executors"
            )
        return store, root

    def files(self, after: StreamId, last: StreamId) -> list[ArchiveFile]:
        """Return the files that may have an ID with after < ID ≤ last, by date. Raises ArchiveError."""
        store, root = self.store()
        infos = retrying(lambda: list(self._infos(store, root, after, last)), self, "listed")
        files = [ArchiveFile(info.path, info.size, day_of(info.path)) for info in infos]
        kept = [file for file in files if file.may_hold(after, last)]
        return sorted(kept, key=lambda file: (-1 if file.day is None else file.day, file.path))

    def _infos(self, store: fs.FileSystem, root: str, after: StreamId, last: StreamId) -> Iterable[fs.FileInfo]:
        top = store.get_file_info(fs.FileSelector(root))
        if any(info.base_name == "_delta_log" for info in top):
            # deltalake would take `file:/folder` for a URI.
            files = _delta_files(self.path if "://" in self.path else os.path.abspath(self.path))
            paths = [path for path in files if ArchiveFile(path, 0, day_of(path)).may_hold(after, last)]
            found: list[fs.FileInfo] = store.get_file_info(paths)
            if gone := [info.path for info in found if info.type == fs.FileType.NotFound]:
                raise FileNotFoundError(gone[0])
            return found
        infos: list[fs.FileInfo] = []
        for folder in top:
            if folder.base_name[:1] in ("_", "."):
                continue
            if not folder.base_name.startswith(_DATE):
                raise ArchiveError(
                    f"archivePath {self.path!r} has {folder.base_name!r}, which the job archive does not write: name "
                    "the path of a table of that job, in format parquet, deltalake or delta"
                )
            if ArchiveFile("", 0, day_of(f"{folder.path}/")).may_hold(after, last):
                infos += store.get_file_info(fs.FileSelector(folder.path, recursive=True))
        data = [info for info in infos if info.type == fs.FileType.File and info.base_name[:1] not in ("_", ".")]
        for info in data:
            if info.extension != "parquet":
                raise ArchiveError(
                    f"file {info.path} of archivePath is not Parquet: archivePath reads archives in format parquet, "
                    "deltalake or delta; read this one with spark.read"
                )
        return data


def day_of(path: str) -> int | None:
    """Return the first millisecond of the last date in a path; None if it has none, as rows whose ID is no time."""
    part = next((part for part in reversed(path.split("/")) if part.startswith(_DATE)), "")
    try:
        date = datetime.date.fromisoformat(part.removeprefix(_DATE))
    except ValueError:
        return None
    return (date - datetime.date(1970, 1, 1)).days * DAY


def retrying(read: Callable[[], _T], archive: ArchiveTable, done: str = "read") -> _T:
    """Return what `read` returns, also if files vanish meanwhile. done: what the files are. Raises ArchiveError."""
    for _ in range(_ATTEMPTS):
        try:
            return read()
        except FileNotFoundError:
            continue  # the job rewrites its last batch
    raise ArchiveError(f"files of the archive at {archive.path!r} vanish while they are {done}: run the read again")


def _delta_files(path: str) -> list[str]:
    """Return the data files of the newest version of a Delta table. Raises ArchiveError."""
    if importlib.util.find_spec("deltalake") is None:
        raise ArchiveError(
            f"archivePath {path!r} is a Delta table, and this Python has no package deltalake, which reads it: "
            f"{command_for('delta')}, here and where tasks run"
        )
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(path)
        protocol = table.protocol()
        features = {"columnMapping"} if protocol.min_reader_version == 2 else set(protocol.reader_features or ())
        uris = [str(uri) for uri in table.file_uris()]
    except DeltaError as error:
        raise ArchiveError(f"the Delta table at archivePath {path!r} cannot be read: {error}") from None
    if features - _HARMLESS:
        raise ArchiveError(
            f"the Delta table at archivePath {path!r} uses {', '.join(sorted(features - _HARMLESS))}, which is not "
            "supported: read it with Delta's own reader"
        )
    return [uri if "://" not in uri else fs.FileSystem.from_uri(uri)[1] for uri in uris]


# -- row groups --------------------------------------------------------------------------------------------------------


def open_parquet(opened: pa.NativeFile, path: str) -> pq.ParquetFile:
    """Return the file. Raises ArchiveError if it is no file of an archive."""
    try:
        file = pq.ParquetFile(opened)
    except pa.ArrowInvalid as error:
        raise ArchiveError(f"file {path} of the archive is damaged: {error}") from None
    missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
    if missing:
        raise ArchiveError(f"file {path} has no column {missing[0]!r}: archivePath needs a table of the job archive")
    return file


@dataclass(frozen=True)
class IdBounds:
    """Bounds of a row group by its statistics, None: unknown."""

    streams: tuple[str, str] | None  # first and last name
    lowest: int | None  # milliseconds
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


def _bounds(column: pq.ColumnChunkMetaData) -> tuple[str, str] | None:
    statistics = column.statistics
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def _milliseconds(entry_id: str) -> int | None:
    try:
        return StreamId.parse(entry_id).ms
    except InvalidStreamId:
        return None


def id_parts(ids: pa.Array) -> tuple[UInt64s, UInt64s]:
    """Return the milliseconds and the sequence numbers of IDs (string)."""
    ms, seq = (pc.replace_substring_regex(ids, pattern, "").cast(pa.uint64()).to_numpy() for pattern in ("-.*", ".*-"))
    return ms, seq


# -- highest IDs -------------------------------------------------------------------------------------------------------


def highest_ids(
    archive: ArchiveTable, above: Mapping[str, StreamId], matches: Matches | None = None
) -> dict[str, StreamId]:
    """Return the highest archived ID of each of these streams that has one above the given ID, and of each other stream
    that `matches`. Only the archive tells it of a stream that was created again. Raises ArchiveError."""
    return retrying(lambda: _HighestIds(above, matches).read(archive), archive)


@dataclass(frozen=True)
class _HighestIds:
    """See highest_ids."""

    above: Mapping[str, StreamId]
    matches: Matches | None
    highest: dict[str, StreamId] = field(default_factory=dict)  # that were found by now

    def read(self, archive: ArchiveTable) -> dict[str, StreamId]:
        """Read the row groups that may have higher IDs, the newest files first."""
        after = MIN_ID if self.matches is not None else min(self.above.values(), default=MAX_ID)
        store, _root = archive.store()
        for source in reversed(archive.files(after, MAX_ID)):
            with store.open_input_file(source.path) as opened:
                file = open_parquet(opened, source.path)
                for number in range(file.num_row_groups):
                    if self._may_rise(id_bounds(file, number, source)):
                        self._add(_ids_of_group(file, number))
        return self.highest

    def _may_rise(self, bounds: IdBounds) -> bool:
        """Whether a row group with these bounds may raise an ID. Only one stream of many is known by its bounds."""
        if bounds.streams is None or bounds.streams[0] != bounds.streams[1]:
            return self.matches is not None or any(bounds.may_hold(name, after) for name, after in self.above.items())
        stream = bounds.streams[0]
        return self._is_named(stream) and bounds.may_hold(stream, self._lowest(stream))

    def _add(self, ids: Mapping[str, StreamId]) -> None:
        for stream, entry_id in ids.items():
            if self._is_named(stream) and entry_id > self._lowest(stream):
                self.highest[stream] = entry_id

    def _is_named(self, stream: str) -> bool:
        return stream in self.above or (self.matches is not None and self.matches(stream))

    def _lowest(self, stream: str) -> StreamId:
        return max(self.above.get(stream, MIN_ID), self.highest.get(stream, MIN_ID))


def _ids_of_group(file: pq.ParquetFile, number: int) -> dict[str, StreamId]:
    """Return the highest ID of each stream in a row group."""
    keys = file.read_row_group(number, columns=list(KEYS)).combine_chunks()
    streams = keys["stream"].cast(pa.string()).combine_chunks()
    ms, seq = id_parts(keys["id"].combine_chunks())
    highest = {}
    for stream in pc.unique(streams).to_pylist():
        places = np.flatnonzero(pc.equal(streams, stream).to_numpy(zero_copy_only=False))
        last = places[np.lexsort((seq[places], ms[places]))[-1]]
        highest[stream] = StreamId(int(ms[last]), int(seq[last]))
    return highest
