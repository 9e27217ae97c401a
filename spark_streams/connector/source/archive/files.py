"""Files of the table that the job `archive` writes: Parquet by date and batch, or Delta.

The files of a batch that is in Spark's commit log never change. The job removes and rewrites the files of its last
batch only if that batch is not in the log; the stream still holds all its entries.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass

from pyarrow import fs

from spark_streams.base.extras import command_for
from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ArchiveError

DAY = 86_400_000  # milliseconds
_DATE = "date="
_LISTINGS = 5  # files may vanish while they are listed
# Features of Delta that do not change which rows a data file has.
_HARMLESS = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}


@dataclass(frozen=True)
class ArchiveFile:
    """A data file. size: bytes; day: its first millisecond, None if its rows have no date."""

    path: str
    size: int
    day: int | None

    def may_hold(self, after: StreamId, last: StreamId) -> bool:
        """Whether the file may have an ID with after < ID ≤ last."""
        return self.day is None or (self.day + DAY > after.ms and self.day <= last.ms)


@dataclass(frozen=True)
class Archive:
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
        for _ in range(_LISTINGS):
            try:
                infos = list(self._infos(store, root, after, last))
            except FileNotFoundError:
                continue  # the job rewrites its last batch
            files = [ArchiveFile(info.path, info.size, day_of(info.path)) for info in infos]
            kept = [file for file in files if file.may_hold(after, last)]
            return sorted(kept, key=lambda file: (-1 if file.day is None else file.day, file.path))
        raise ArchiveError(f"files of the archive at {self.path!r} vanish while they are listed: run the read again")

    def _infos(self, store: fs.FileSystem, root: str, after: StreamId, last: StreamId) -> Iterable[fs.FileInfo]:
        top = store.get_file_info(fs.FileSelector(root))
        if any(info.base_name == "_delta_log" for info in top):
            # deltalake would take `file:/folder` for a URI.
            files = _delta_files(self.path if "://" in self.path else os.path.abspath(self.path))
            paths = [path for path in files if ArchiveFile(path, 0, day_of(path)).may_hold(after, last)]
            return [info for info in store.get_file_info(paths) if _exists(info)]
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


def _exists(info: fs.FileInfo) -> bool:
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(info.path)
    return True


def day_of(path: str) -> int | None:
    """Return the first millisecond of the date in a path; None if it has none, as rows whose ID is no time."""
    part = next((part for part in path.split("/") if part.startswith(_DATE)), "")
    try:
        date = datetime.date.fromisoformat(part.removeprefix(_DATE))
    except ValueError:
        return None
    return (date - datetime.date(1970, 1, 1)).days * DAY


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
