"""Files of entries: JSON Lines and Parquet. Both hold IDs and fields byte for byte, in their order.

    {"id": "1732097000000-0", "fields": {"customer": "ann", "photo": {"base64": "/9j/"}}}       *.jsonl, *.ndjson, -
    id STRING, fields LIST<STRUCT<name BINARY, value BINARY>>                                    *.parquet

JSON is that of `rstream show --json`: if a field name is not UTF-8 or occurs twice, `fields` is a list of
[name, value]. A Parquet file may also have MAP<BINARY, BINARY>, as the job `archive` writes with `fields = "binary"`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_streams.deadletter.inspect.export import fields_as_json
from spark_streams.errors import CopyFileError, InvalidOptionError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.model.printable import is_utf8, json_text
from spark_streams.transfer.entries import Entry
from spark_streams.transfer.parquet import SCHEMA, rows_of

Write = Callable[[Sequence[Entry]], None]

STANDARD = "-"  # standard output or input
_PAGE, _PAGE_BYTES = 1_000, 4 << 20  # entries, bytes of lines
_LINE_BYTES = 1 << 30


def is_parquet(name: str) -> bool:
    """Whether a file of this name is Parquet. Raises InvalidOptionError."""
    ending = Path(name).suffix.lower()
    if name != STANDARD and ending not in (".jsonl", ".ndjson", ".parquet"):
        raise InvalidOptionError(
            f"{name!r} does not end in .jsonl, .ndjson or .parquet; rename it, or use - (JSON Lines)"
        )
    return ending == ".parquet"


def read_file(name: str) -> Iterator[list[Entry]]:
    """Yield the entries of a file. Raises CopyFileError, which names the line or row of a broken entry."""
    parquet = is_parquet(name)
    parse: Callable[[Any], Entry | None] = _entry_of_row if parquet else _entry_of_line
    number, last = 0, MIN_ID
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == STANDARD else open(name, "rb") as file:
            for page in rows_of(file, name) if parquet else _lines(file, name):
                entries = []
                for item in page:
                    number += 1
                    try:
                        entry = parse(item)
                        if entry is not None and entry.id <= last:
                            raise ValueError(f"its ID {entry.id} is not above {last}; sort the file by its IDs")
                    except ValueError as error:
                        where = f"{'row' if parquet else 'line'} {number:,} of {name!r}"
                        raise CopyFileError(f"{where} is no entry of a stream: {error}") from None
                    if entry is not None:
                        entries.append(entry)
                        last = entry.id
                yield entries
    except (OSError, pa.ArrowException) as error:
        raise CopyFileError(f"file {name!r} cannot be read: {error}; check its name and its form") from None


@contextlib.contextmanager
def write_file(name: str) -> Iterator[Write]:
    """Yield a function that writes entries. A file is replaced when the block ends without an error. Raises
    CopyFileError."""
    if name == STANDARD:
        yield lambda entries: _write_lines(sys.stdout.buffer, entries)
        return
    path = Path(name)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            if is_parquet(name):
                with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
                    yield lambda entries: writer.write_batch(_batch(entries))
            else:
                yield lambda entries: _write_lines(file, entries)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise CopyFileError(f"file {name!r} cannot be written: {error}; check the folder and its free space") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


# -- JSON Lines -----------------------------------------------------------------------------------------------------


def _write_lines(file: IO[bytes], entries: Sequence[Entry]) -> None:
    for entry in entries:
        value = {"id": str(entry.id), "fields": fields_as_json(entry.texts())}
        file.write(json_text(value, separators=(",", ":")).encode() + b"\n")


def _lines(file: IO[bytes], name: str) -> Iterator[list[bytes]]:
    """Yield lines, some at a time. Raises CopyFileError for a line that does not end."""
    lines: list[bytes] = []
    size = number = 0
    while line := file.readline(_LINE_BYTES):
        number += 1
        if len(line) == _LINE_BYTES and not line.endswith(b"\n"):
            raise CopyFileError(f"line {number:,} of {name!r} has more than {_LINE_BYTES:,} bytes: it is not an entry")
        lines.append(line)
        size += len(line)
        if len(lines) == _PAGE or size >= _PAGE_BYTES:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that no name is lost if it occurs twice."""


def _entry_of_line(line: bytes) -> Entry | None:
    """Return the entry of a line, None for an empty line. Raises ValueError."""
    if not line.strip():
        return None
    try:
        value = json.loads(line.decode().strip(), object_pairs_hook=_Object)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} in column {error.colno}") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    members = dict(value) if isinstance(value, _Object) else {}
    entry_id, fields = members.get("id"), members.get("fields")
    if not isinstance(entry_id, str) or not isinstance(fields, list):
        raise ValueError('it is no JSON object with a text "id" and "fields"')
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in fields):
        raise ValueError('"fields" is no object and no list of [name, value]')
    return _entry(entry_id, [_bytes(word) for pair in fields for word in pair])


def _bytes(value: object) -> bytes:
    """Return the bytes of a text, or of {"base64": …}. Raises ValueError."""
    if isinstance(value, str):
        if not is_utf8(value):
            raise ValueError("a name or value has half of a surrogate pair, which is no character")
        return value.encode()
    if isinstance(value, _Object) and [name for name, _ in value] == ["base64"] and isinstance(value[0][1], str):
        return base64.b64decode(value[0][1], validate=True)
    raise ValueError('a name or value is no text and no {"base64": …}')


def _entry(entry_id: str, fields: list[bytes]) -> Entry:
    if not fields:
        raise ValueError("it has no field")
    return Entry(StreamId.parse(entry_id), fields)


# -- Parquet --------------------------------------------------------------------------------------------------------


def _batch(entries: Sequence[Entry]) -> pa.RecordBatch:
    names = [name for entry in entries for name in entry.fields[0::2]]
    values = [value for entry in entries for value in entry.fields[1::2]]
    offsets = list(accumulate((len(entry.fields) // 2 for entry in entries), initial=0))
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.binary()), pa.array(values, pa.binary())], ["name", "value"])
    fields = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs)
    return pa.record_batch([pa.array([str(entry.id) for entry in entries]), fields], schema=SCHEMA)


def _entry_of_row(row: tuple[str | None, Any]) -> Entry:
    """Return the entry of a row. Raises ValueError."""
    entry_id, fields = row
    pairs = [tuple(pair.values()) if isinstance(pair, dict) else pair for pair in fields or ()]
    words = [word for pair in pairs for word in pair]
    if entry_id is None or any(word is None for word in words):
        raise ValueError("it has a null")
    return _entry(entry_id, words)
