"""Tables that may have rows of a micro-batch, by their metadata: the names that jobs give their batches.

    _delta_log/…12.json        txn: {"appId": "<query>:<output>", "version": 7}     version 12 has appended batch 7
    snapshot of Iceberg        spark-streams.query and spark-streams.batch          it has appended the batch
    …/batch=b<query>-7/        files of batch 7, of the first characters of the query

`read_table` reads them. What it returns is a value, and `files` are read only to find the row of an entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from pyarrow import fs

from spark_streams.base.extras import command_for
from spark_streams.base.numbers import parse_number
from spark_streams.connector.admin.checkpoint import ICEBERG_BATCH, ICEBERG_QUERY, json_object
from spark_streams.connector.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.snapshots import Snapshot

_COMMIT = re.compile(r"([0-9]{20})\.json")
_FOLDER = re.compile(r"batch=b(.{1,8})-([0-9]{1,18})")
_NO_BATCHES = "it names no batch of the query, which writes to another table or with once = false"

_REMOVED = "the table's last version does not have this file: another writer has removed or rewritten its rows"
_DELETED = "the table's last version has deleted some rows of this file"


class File(NamedTuple):
    """A file. doubt: why a row in it may not be in the table now, "" if it is."""

    store: fs.FileSystem
    path: str
    doubt: str = ""


@dataclass(frozen=True)
class Written:
    """A batch in a table. query: its ID, or how that begins; place: a version, a snapshot or a folder; at: Unix ms,
    None: no time is known; files: that the batch has written. Raises OSError."""

    query: str
    batch: int
    place: str
    at: int | None
    files: Callable[[], Iterable[File]]


@dataclass(frozen=True)
class Table:
    """kind: what names the batches; gap: why it may have a batch that is not in `written`, "" if it has none; is_final:
    what a batch has written stays, also if the batch is not complete."""

    name: str
    kind: str
    written: Sequence[Written] = ()
    gap: str = ""
    is_final: bool = True

    def of_query(self, query: str) -> tuple[Sequence[Written], str]:
        """Return (the batches of a query, why there may be more)."""
        found = [one for one in self.written if query and query.startswith(one.query)]
        return found, self.gap or ("" if found else _NO_BATCHES)


def read_table(name: str) -> Table:
    """Read the batches of a table. name: a folder, a URI that pyarrow reads, or CATALOG.NAMESPACE.TABLE of pyiceberg.
    Raises InvalidOptionError."""
    if "/" not in name and name.count(".") > 1 and not Path(name).exists():
        return _iceberg(name)
    try:
        store, root = fs.FileSystem.from_uri(name) if "://" in name else (fs.LocalFileSystem(), name.rstrip("/") or "/")
        top = {info.base_name for info in store.get_file_info(fs.FileSelector(root))}
        return _delta(name, store, root) if "_delta_log" in top else _folders(name, store, root)
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            f"table {name!r} cannot be read: {error}. Name the folder of a Delta table or of files that a job has "
            "written, or an Iceberg table as CATALOG.NAMESPACE.TABLE, with a catalog of pyiceberg's configuration"
        ) from error


def _delta(name: str, store: fs.FileSystem, root: str) -> Table:
    log = {info.base_name: info.path for info in store.get_file_info(fs.FileSelector(f"{root}/_delta_log"))}
    commits = sorted((int(match[1]), log[file]) for file in log if (match := _COMMIT.fullmatch(file)))
    gap = f"its log begins with version {commits[0][0]}" if commits and commits[0][0] else ""
    if not commits or "_staged_commits" in log:
        gap = "its log is not complete in the folder _delta_log"
    actions = {version: _actions(store, path) for version, path in commits}
    doubts = _doubts(actions)
    written = [one for version, of in actions.items() for one in _commit(store, root, version, of, doubts)]
    return Table(name, "Delta's log", written, gap)


_Actions = Sequence[Mapping[str, object]]  # of one version of a Delta table


def _actions(store: fs.FileSystem, path: str) -> _Actions:
    with store.open_input_stream(path) as file:
        return [json_object(line) for line in file.read().decode("utf-8", "replace").split("\n")]


def _doubts(versions: Mapping[int, _Actions]) -> Mapping[str, str]:
    """Return for each file why the last version may not have all its rows. versions: in order."""
    doubts: dict[str, str] = {}
    previous: int | None = None
    for version, actions in versions.items():
        if previous is not None and version != previous + 1:
            doubts = dict.fromkeys(doubts, f"the log lacks version {previous + 1}, which may have removed its rows")
        for path in (part["path"] for action in actions if "path" in (part := _part(action, "remove"))):
            doubts[str(path)] = _REMOVED
        for part in (part for action in actions if "path" in (part := _part(action, "add"))):
            doubts[str(part["path"])] = _DELETED if part.get("deletionVector") else ""
        previous = version
    return doubts


def _commit(
    store: fs.FileSystem, root: str, version: int, actions: _Actions, doubts: Mapping[str, str]
) -> Iterable[Written]:
    times = [at for action in actions if isinstance(at := _part(action, "commitInfo").get("timestamp"), int)]
    paths = [str(part["path"]) for action in actions if "path" in (part := _part(action, "add"))]
    files = [File(store, f"{root}/{unquote(added)}", doubts[added]) for added in paths]
    for transaction in (part for action in actions if (part := _part(action, "txn"))):
        query, _, _output = str(transaction.get("appId")).rpartition(":")
        batch = parse_number(str(transaction.get("version")))
        if query and batch is not None:
            yield Written(query, batch, f"version {version}", times[0] if times else None, partial(list, files))


def _part(action: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = action.get(name)
    return value if isinstance(value, dict) else {}


def _folders(name: str, store: fs.FileSystem, root: str) -> Table:
    files: dict[tuple[str, int], list[File]] = {}
    for info in store.get_file_info(fs.FileSelector(root, recursive=True)):
        *folders, file = info.path.removeprefix(root).lstrip("/").split("/")
        is_hidden = file[:1] in ("_", ".") or any(part[:1] in ("_", ".") and "=" not in part for part in folders)
        batch = next((match for part in folders if (match := _FOLDER.fullmatch(part))), None)
        if info.is_file and batch and not is_hidden:
            files.setdefault((batch[1], int(batch[2])), []).append(File(store, info.path))
    written = [
        Written(query, batch, f"folder batch=b{query}-{batch}", None, partial(list, paths))
        for (query, batch), paths in files.items()
    ]
    gap = (
        ""
        if written
        else "it has neither a folder _delta_log nor folders batch=…; name an Iceberg table as CATALOG.NAMESPACE.TABLE"
    )
    return Table(name, "names of folders", written, gap, is_final=False)


def _iceberg(name: str) -> Table:
    kind = "summaries of Iceberg's snapshots"
    catalog, _, of_catalog = name.partition(".")
    if find_spec("pyiceberg") is None:
        return Table(name, kind, gap=f"this Python has no package pyiceberg, which reads it: {command_for('iceberg')}")
    from pyiceberg.catalog import load_catalog

    try:
        table = load_catalog(catalog).load_table(of_catalog)
    except Exception as error:  # noqa: BLE001 - each catalog has its own errors, whose texts may hold passwords
        return Table(name, kind, gap=f"catalog {catalog!r} of pyiceberg cannot load it ({type(error).__name__})")
    written = []
    for snapshot in table.metadata.snapshots:
        summary = snapshot.summary or {}
        query, _, _output = str(summary.get(ICEBERG_QUERY)).rpartition(":")
        if query and (batch := parse_number(str(summary.get(ICEBERG_BATCH)))) is not None:
            at, place = snapshot.timestamp_ms, f"snapshot {snapshot.snapshot_id}"
            written.append(Written(query, batch, place, at, partial(_added, table, snapshot)))
    has_all = len(table.metadata.snapshots) == table.metadata.last_sequence_number
    return Table(name, kind, written, "" if has_all else "some of its snapshots have expired")


def _added(table: IcebergTable, snapshot: Snapshot) -> list[File]:
    """Return the data files that a snapshot has added. Raises OSError."""
    from pyiceberg.manifest import ManifestEntryStatus

    try:
        manifests = [one for one in snapshot.manifests(table.io) if one.added_snapshot_id == snapshot.snapshot_id]
        entries = [entry for one in manifests for entry in one.fetch_manifest_entry(table.io)]
        added = [entry.data_file.file_path for entry in entries if entry.status == ManifestEntryStatus.ADDED]
        present = {task.file.file_path: _DELETED if task.delete_files else "" for task in table.scan().plan_files()}
        places = {path: fs.FileSystem.from_uri(path) for path in added}
        return [File(store, file, present.get(path, _REMOVED)) for path, (store, file) in places.items()]
    except Exception as error:
        raise OSError(f"the snapshot's files cannot be listed ({type(error).__name__})") from error
