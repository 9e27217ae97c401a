"""Micro-batches that read an entry, and its rows: in tables, by the batches that read it, and in archives.

A checkpoint and the ledger of a sink tell the batches. A table has them by its metadata, with the names that jobs give
their batches:

    _delta_log/…12.json        txn: {"appId": "<query>:<output>", "version": 7}     version 12 has appended batch 7
    snapshot of Iceberg        spark-streams.query and spark-streams.batch          it has appended the batch
    …/batch=b<query>-7/        files of batch 7, of the first characters of the query

`read_table` reads them. The row of an entry is found by its stream and ID, if the Parquet files have these columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from spark_streams.base.extras import command_for
from spark_streams.base.ids import StreamId
from spark_streams.base.numbers import parse_number
from spark_streams.base.printable import name_text
from spark_streams.connector.admin.checkpoint import (
    ICEBERG_BATCH,
    ICEBERG_QUERY,
    KEYS,
    ArchiveTable,
    Batch,
    Checkpoint,
    Offset,
    QueryRecord,
    json_object,
    partition_name,
    retrying,
)
from spark_streams.connector.errors import ArchiveError, InvalidOptionError
from spark_streams.operations.journey.entry_facts import EntryFacts
from spark_streams.operations.journey.entry_lines import JourneyLine

if TYPE_CHECKING:
    from pyiceberg.table import BatchTable as IcebergTable
    from pyiceberg.table.snapshots import Snapshot


_LOG = "Spark's log of offsets"


def batch_lines(facts: EntryFacts, stream: str, entry: StreamId, checkpoint: Checkpoint) -> list[JourneyLine]:
    """Return the batches that read an entry. stream, entry: of the entry, or of its returned copy."""
    found = [
        (batch, offset)
        for batch in checkpoint.batches
        for offset in batch.offsets or ()
        if any(part.covers(entry) for part in offset.ranges(stream))
    ]
    lines = []
    for batch, offset in found:
        new = offset.new.get(stream)
        is_new = new is not None and new.covers(entry)
        lines.append(_batch_line(facts, batch, offset, stream, is_new, len(found) == 1, checkpoint.query))
    return lines or [_no_batch(stream, entry, checkpoint)]


def _batch_line(
    facts: EntryFacts, batch: Batch, offset: Offset, stream: str, is_new: bool, is_only: bool, query: str
) -> JourneyLine:
    why = ""
    if not is_only:
        why = "several batches have its ID in their ranges: the stream was created again, or its entries read again"
    elif not is_new:
        why = "the range has entries that were pending or handed over, and the log does not name them"
    elif offset.at[stream].read is None:
        why = "other consumers read from the group, and may have been given it"
    elif facts.fields is None:
        why = "the entry is gone, and may have left the stream before the batch"
    state = "complete" if batch.is_committed else "not complete"
    return JourneyLine(
        "batch",
        f"in the range of batch {batch.number} of query {query or '(no ID)'}, which is {state}",
        _LOG,
        batch.at,
        why,
        name_text(offset.group),
        {"batch": batch.number, "query": query, "committed": batch.is_committed},
    )


def _no_batch(stream: str, entry: StreamId, checkpoint: Checkpoint) -> JourneyLine:
    why, batches = "", checkpoint.batches
    last = batches[-1].offsets if batches else None
    if not batches or any(batch.offsets is None for batch in batches):
        why = "the log has no batch" if not batches else "an offset in it cannot be read"
    elif not any(stream in offset.at for offset in last or ()):
        why = "its last batch does not read this stream"
    elif batches[0].number and not all(entry > offset[stream] for offset in last or () if stream in offset.at):
        why = f"the log begins with batch {batches[0].number}"
    return JourneyLine("no batch", "in no batch of the checkpoint", _LOG, why_unknown=why)


def ledger_lines(lines: Sequence[JourneyLine], record: QueryRecord) -> list[JourneyLine]:
    """Return what the sink's ledger says of the batches in these lines."""
    return [_ledger_line(int(str(line.facts["batch"])), record) for line in lines if line.event == "batch"]


def _ledger_line(batch: int, record: QueryRecord) -> JourneyLine:
    streams = sorted(name_text(stream) for stream, last in record.streams.items() if last == batch)
    written = f", to {', '.join(streams)}" if streams else ""
    values: dict[str, object] = {"batch": batch, "closed": batch <= record.closed, "streams": streams}
    if batch > record.closed:
        text = f"the sink has not closed batch {batch}{written}"
        return JourneyLine("rows", text, "ledger of the sink", facts=values, is_of_batch=True)
    why = "" if streams else "the ledger names only the last batch of each stream"
    text, source = f"all rows of batch {batch} are written{written}", "ledger of the sink"
    return JourneyLine("rows", text, source, why_unknown=why, facts=values, is_of_batch=True)


_COMMIT = re.compile(r"([0-9]{20})\.json")
_FOLDER = re.compile(r"batch=b(.{1,8})-([0-9]{1,18})")
_NO_BATCHES = "it names no batch of the query, which writes to another table or with once = false"

_REMOVED = "the table's last version does not have this file: another writer has removed or rewritten its rows"
_DELETED = "the table's last version has deleted some rows of this file"


class TableFile(NamedTuple):
    """A file. doubt: why a row in it may not be in the table now, "" if it is."""

    store: fs.FileSystem
    path: str
    doubt: str = ""


@dataclass(frozen=True)
class WrittenBatch:
    """A batch in a table."""

    query: str  # its ID, or how that begins
    batch: int
    place: str  # a version, a snapshot or a folder
    at: int | None  # Unix ms; None: no time is known
    files: Callable[[], Iterable[TableFile]]  # that the batch has written; raises OSError


@dataclass(frozen=True)
class BatchTable:
    """A table that may have rows of batches."""

    name: str
    kind: str  # what names the batches
    written: Sequence[WrittenBatch] = ()
    gap: str = ""  # why it may have a batch that is not in `written`, "" if it has none
    is_final: bool = True  # what a batch has written stays, also if the batch is not complete

    def of_query(self, query: str) -> tuple[Sequence[WrittenBatch], str]:
        """Return (the batches of a query, why there may be more)."""
        found = [one for one in self.written if query and query.startswith(one.query)]
        return found, self.gap or ("" if found else _NO_BATCHES)


def read_table(name: str) -> BatchTable:
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


def _delta(name: str, store: fs.FileSystem, root: str) -> BatchTable:
    log = {info.base_name: info.path for info in store.get_file_info(fs.FileSelector(f"{root}/_delta_log"))}
    commits = sorted((int(match[1]), log[file]) for file in log if (match := _COMMIT.fullmatch(file)))
    gap = f"its log begins with version {commits[0][0]}" if commits and commits[0][0] else ""
    if not commits or "_staged_commits" in log:
        gap = "its log is not complete in the folder _delta_log"
    actions = {version: _actions(store, path) for version, path in commits}
    doubts = _doubts(actions)
    written = [one for version, of in actions.items() for one in _commit(store, root, version, of, doubts)]
    return BatchTable(name, "Delta's log", written, gap)


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
) -> Iterable[WrittenBatch]:
    times = [at for action in actions if isinstance(at := _part(action, "commitInfo").get("timestamp"), int)]
    paths = [str(part["path"]) for action in actions if "path" in (part := _part(action, "add"))]
    files = [TableFile(store, f"{root}/{unquote(added)}", doubts[added]) for added in paths]
    for transaction in (part for action in actions if (part := _part(action, "txn"))):
        query, _, _output = str(transaction.get("appId")).rpartition(":")
        batch = parse_number(str(transaction.get("version")))
        if query and batch is not None:
            yield WrittenBatch(query, batch, f"version {version}", times[0] if times else None, partial(list, files))


def _part(action: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = action.get(name)
    return value if isinstance(value, dict) else {}


def _folders(name: str, store: fs.FileSystem, root: str) -> BatchTable:
    files: dict[tuple[str, int], list[TableFile]] = {}
    for info in store.get_file_info(fs.FileSelector(root, recursive=True)):
        *folders, file = info.path.removeprefix(root).lstrip("/").split("/")
        is_hidden = file[:1] in ("_", ".") or any(part[:1] in ("_", ".") and "=" not in part for part in folders)
        batch = next((match for part in folders if (match := _FOLDER.fullmatch(part))), None)
        if info.is_file and batch and not is_hidden:
            files.setdefault((batch[1], int(batch[2])), []).append(TableFile(store, info.path))
    written = [
        WrittenBatch(query, batch, f"folder batch=b{query}-{batch}", None, partial(list, paths))
        for (query, batch), paths in files.items()
    ]
    gap = (
        ""
        if written
        else "it has neither a folder _delta_log nor folders batch=…; name an Iceberg table as CATALOG.NAMESPACE.TABLE"
    )
    return BatchTable(name, "names of folders", written, gap, is_final=False)


def _iceberg(name: str) -> BatchTable:
    kind = "summaries of Iceberg's snapshots"
    catalog, _, of_catalog = name.partition(".")
    if find_spec("pyiceberg") is None:
        return BatchTable(
            name, kind, gap=f"this Python has no package pyiceberg, which reads it: {command_for('iceberg')}"
        )
    from pyiceberg.catalog import load_catalog

    try:
        table = load_catalog(catalog).load_table(of_catalog)
    except Exception as error:  # noqa: BLE001 - each catalog has its own errors, whose texts may hold passwords
        return BatchTable(name, kind, gap=f"catalog {catalog!r} of pyiceberg cannot load it ({type(error).__name__})")
    written = []
    for snapshot in table.metadata.snapshots:
        summary = snapshot.summary or {}
        query, _, _output = str(summary.get(ICEBERG_QUERY)).rpartition(":")
        if query and (batch := parse_number(str(summary.get(ICEBERG_BATCH)))) is not None:
            at, place = snapshot.timestamp_ms, f"snapshot {snapshot.snapshot_id}"
            written.append(WrittenBatch(query, batch, place, at, partial(_added, table, snapshot)))
    has_all = len(table.metadata.snapshots) == table.metadata.last_sequence_number
    return BatchTable(name, kind, written, "" if has_all else "some of its snapshots have expired")


def _added(table: IcebergTable, snapshot: Snapshot) -> list[TableFile]:
    """Return the data files that a snapshot has added. Raises OSError."""
    from pyiceberg.manifest import ManifestEntryStatus

    try:
        manifests = [one for one in snapshot.manifests(table.io) if one.added_snapshot_id == snapshot.snapshot_id]
        entries = [entry for one in manifests for entry in one.fetch_manifest_entry(table.io)]
        added = [entry.data_file.file_path for entry in entries if entry.status == ManifestEntryStatus.ADDED]
        present = {task.file.file_path: _DELETED if task.delete_files else "" for task in table.scan().plan_files()}
        places = {path: fs.FileSystem.from_uri(path) for path in added}
        return [TableFile(store, file, present.get(path, _REMOVED)) for path, (store, file) in places.items()]
    except Exception as error:
        raise OSError(f"the snapshot's files cannot be listed ({type(error).__name__})") from error


_ROW_COLUMNS = (("_stream", "_id"), KEYS)
_ERRORS = (OSError, ValueError, pa.ArrowException)


def table_lines(table: BatchTable, batches: Sequence[JourneyLine], stream: str, entry: StreamId) -> list[JourneyLine]:
    """Return what a table has of the batches in these lines. stream, entry: as the row of the entry names them."""
    return [line for batch in batches if batch.event == "batch" for line in _table_lines(table, batch, stream, entry)]


def proved_by_rows(
    batches: Sequence[JourneyLine], rows: Sequence[JourneyLine], archives: Sequence[JourneyLine]
) -> list[JourneyLine]:
    """Return the batches, of which those are exact that have written a row of the entry, to a table or an archive."""
    written = {row.facts["batch"] for row in rows if row.event == "row" and row.facts["files"]}
    files = [file for line in archives if line.event == "archived" for file in line.texts("files")]

    def has_row(line: JourneyLine) -> bool:
        query, number = str(line.facts["query"]), int(str(line.facts["batch"]))
        folder = f"/batch={partition_name(query, number)}/"
        return number in written or (bool(query) and any(folder in file for file in files))

    return [replace(line, why_unknown="") if line.event == "batch" and has_row(line) else line for line in batches]


def _table_lines(table: BatchTable, line: JourneyLine, stream: str, entry: StreamId) -> list[JourneyLine]:
    number, values = line.facts["batch"], {"table": table.name, "batch": line.facts["batch"]}
    of_query, gap = table.of_query(str(line.facts["query"]))
    written = [one for one in of_query if one.batch == number]
    if not written:
        text = f"no rows of batch {number} are in table {table.name}"
        return [JourneyLine("no rows", text, table.kind, why_unknown=gap or line.why_unknown, facts=values)]
    is_final = table.is_final or line.facts["committed"]
    why = "" if is_final else "the batch is not complete, so its files may change"
    lines = []
    for one in written:
        text = f"the rows of batch {number} are in table {table.name}, {one.place}"
        rows = _row_lines(one, stream, entry, values)
        has_row = any(row.is_exact and row.facts["files"] for row in rows)
        facts = {**values, "place": one.place}
        lines.append(JourneyLine("rows", text, table.kind, one.at, why, facts=facts, is_of_batch=not has_row))
        lines += rows
    return lines


def _row_lines(written: WrittenBatch, stream: str, entry: StreamId, values: dict[str, object]) -> list[JourneyLine]:
    """Return in which file the row is; nothing if the files do not have its stream and ID."""
    try:
        found = find_row(written.files(), stream, entry)
    except _ERRORS as error:
        why = f"a file of {written.place} cannot be read, or was replaced since: {error}"
        return [
            JourneyLine("row", "whether its row is there", "Parquet", why_unknown=why, facts={**values, "files": []})
        ]
    if found is None:
        return []
    paths, doubts = [file.path for file in found], [file.doubt for file in found if file.doubt]
    text = f"its row is in file {', '.join(paths)}" if paths else f"{written.place} has no row with its stream and ID"
    if doubts:
        text = f"its row was written to file {', '.join(paths)}"
    return [JourneyLine("row", text, "Parquet", why_unknown="".join(doubts[:1]), facts={**values, "files": paths})]


def archive_line(path: str, stream: str, entry: StreamId) -> JourneyLine:
    """Return in which file of an archive an entry is."""
    archive, values = ArchiveTable(path), {"archive": path}
    try:
        store, _root = archive.store()

        def find() -> list[str]:
            files = [TableFile(store, file.path) for file in archive.files(entry, entry)]
            found = find_row(files, stream, entry)
            if files and found is None:
                raise ArchiveError(f"the files of {path!r} have no columns stream and id")
            return [file.path for file in found or []]

        found = retrying(find, archive)  # its last batch may be rewritten meanwhile
    except (ArchiveError, *_ERRORS) as error:
        why = error.message if isinstance(error, ArchiveError) else str(error)
        return JourneyLine("archived", f"whether archive {path} has it", "Parquet", why_unknown=why, facts=values)
    if not found:
        return JourneyLine("not archived", f"archive {path} does not have it", "Parquet", facts=values)
    return JourneyLine("archived", f"archived in {', '.join(found)}", "Parquet", facts={**values, "files": found})


def find_row(files: Iterable[TableFile], stream: str, entry: StreamId) -> list[TableFile] | None:
    """Return the files that have a row with this stream and ID; None if no file has such columns. Files that are not
    Parquet are not read. Raises OSError, ValueError, pa.ArrowException."""
    found: list[TableFile] | None = None
    for file in files:
        if file.path.endswith(".parquet"):
            data = ds.dataset(file.path, filesystem=file.store, format="parquet")
            columns = next((columns for columns in _ROW_COLUMNS if {*columns} <= {*data.schema.names}), None)
            if columns is not None:
                found = found or []
                is_row = (ds.field(columns[0]) == stream) & (ds.field(columns[1]) == str(entry))
                found += [file] if data.count_rows(filter=is_row) else []
    return found
