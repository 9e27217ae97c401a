"""Lines about the rows of an entry outside the server: in tables, by the batches that read it, and in archives.

The row of an entry is found by its stream and ID, if the Parquet files have these columns. The rows of a batch are
found without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.checkpoint import KEYS, ArchiveTable, partition_name, retrying
from spark_streams.connector.errors import ArchiveError
from spark_streams.operations.journey.line import Line
from spark_streams.operations.journey.tables import File, Table, Written

_COLUMNS = (("_stream", "_id"), KEYS)
_ERRORS = (OSError, ValueError, pa.ArrowException)


def table_lines(table: Table, batches: Sequence[Line], stream: str, entry: StreamId) -> list[Line]:
    """Return what a table has of the batches in these lines. stream, entry: as the row of the entry names them."""
    return [line for batch in batches if batch.event == "batch" for line in _batch_lines(table, batch, stream, entry)]


def proved_by_rows(batches: Sequence[Line], rows: Sequence[Line], archives: Sequence[Line]) -> list[Line]:
    """Return the batches, of which those are exact that have written a row of the entry, to a table or an archive."""
    written = {row.facts["batch"] for row in rows if row.event == "row" and row.facts["files"]}
    files = [file for line in archives if line.event == "archived" for file in _files(line)]

    def has_row(line: Line) -> bool:
        query, number = str(line.facts["query"]), int(str(line.facts["batch"]))
        folder = f"/batch={partition_name(query, number)}/"
        return number in written or (bool(query) and any(folder in file for file in files))

    return [replace(line, why_unknown="") if line.event == "batch" and has_row(line) else line for line in batches]


def _batch_lines(table: Table, line: Line, stream: str, entry: StreamId) -> list[Line]:
    number, values = line.facts["batch"], {"table": table.name, "batch": line.facts["batch"]}
    of_query, gap = table.of_query(str(line.facts["query"]))
    written = [one for one in of_query if one.batch == number]
    if not written:
        text = f"no rows of batch {number} are in table {table.name}"
        return [Line("no rows", text, table.kind, why_unknown=gap or line.why_unknown, facts=values)]
    is_final = table.is_final or line.facts["committed"]
    why = "" if is_final else "the batch is not complete, so its files may change"
    lines = []
    for one in written:
        text = f"the rows of batch {number} are in table {table.name}, {one.place}"
        rows = _row_lines(one, stream, entry, values)
        has_row = any(row.is_exact and row.facts["files"] for row in rows)
        facts = {**values, "place": one.place}
        lines.append(Line("rows", text, table.kind, one.at, why, facts=facts, is_of_batch=not has_row))
        lines += rows
    return lines


def _row_lines(written: Written, stream: str, entry: StreamId, values: dict[str, object]) -> list[Line]:
    """Return in which file the row is; nothing if the files do not have its stream and ID."""
    try:
        found = find_row(written.files(), stream, entry)
    except _ERRORS as error:
        why = f"a file of {written.place} cannot be read, or was replaced since: {error}"
        return [Line("row", "whether its row is there", "Parquet", why_unknown=why, facts={**values, "files": []})]
    if found is None:
        return []
    paths, doubts = [file.path for file in found], [file.doubt for file in found if file.doubt]
    text = f"its row is in file {', '.join(paths)}" if paths else f"{written.place} has no row with its stream and ID"
    if doubts:
        text = f"its row was written to file {', '.join(paths)}"
    return [Line("row", text, "Parquet", why_unknown="".join(doubts[:1]), facts={**values, "files": paths})]


def archive_line(path: str, stream: str, entry: StreamId) -> Line:
    """Return in which file of an archive an entry is."""
    archive, values = ArchiveTable(path), {"archive": path}
    try:
        store, _root = archive.store()

        def find() -> list[str]:
            files = [File(store, file.path) for file in archive.files(entry, entry)]
            found = find_row(files, stream, entry)
            if files and found is None:
                raise ArchiveError(f"the files of {path!r} have no columns stream and id")
            return [file.path for file in found or []]

        found = retrying(find, archive)  # its last batch may be rewritten meanwhile
    except (ArchiveError, *_ERRORS) as error:
        why = error.message if isinstance(error, ArchiveError) else str(error)
        return Line("archived", f"whether archive {path} has it", "Parquet", why_unknown=why, facts=values)
    if not found:
        return Line("not archived", f"archive {path} does not have it", "Parquet", facts=values)
    return Line("archived", f"archived in {', '.join(found)}", "Parquet", facts={**values, "files": found})


def find_row(files: Iterable[File], stream: str, entry: StreamId) -> list[File] | None:
    """Return the files that have a row with this stream and ID; None if no file has such columns. Files that are not
    Parquet are not read. Raises OSError, ValueError, pa.ArrowException."""
    found: list[File] | None = None
    for file in files:
        if file.path.endswith(".parquet"):
            data = ds.dataset(file.path, filesystem=file.store, format="parquet")
            columns = next((columns for columns in _COLUMNS if {*columns} <= {*data.schema.names}), None)
            if columns is not None:
                found = found or []
                is_row = (ds.field(columns[0]) == stream) & (ds.field(columns[1]) == str(entry))
                found += [file] if data.count_rows(filter=is_row) else []
    return found


def _files(line: Line) -> Sequence[str]:
    files = line.facts.get("files")
    return files if isinstance(files, list) else []
