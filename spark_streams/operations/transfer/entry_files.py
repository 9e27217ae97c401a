"""Files of entries: JSON Lines (`*.jsonl`, `*.ndjson`, `-`) and Parquet (`*.parquet`).

Both hold IDs and fields byte for byte, in their order. A file may come from anyone, so a page of it may take a limited
amount of memory. A line of JSON is as `rstream show --json` prints it: base/export_lines.py has the form.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from spark_streams.base.export_lines import entry_in, member, parse_json
from spark_streams.base.ids import MIN_ID
from spark_streams.base.printable import json_text
from spark_streams.connector.admin.dead_letters import fields_as_json
from spark_streams.connector.errors import CopyFileError, InvalidOptionError
from spark_streams.operations.transfer.parquet import (
    MOST_MEMORY,
    ColumnError,
    batch_of,
    entry_of_row,
    limited_memory,
    pages_of_rows,
    parquet_writer,
)
from spark_streams.operations.transfer.transferred import TransferEntry

LONGEST = 32 << 20  # bytes of a line
_SHORT = 1 << 20  # bytes of a line whose objects take little memory in any case
_PAGE, _PAGE_BYTES = 1_000, 4 << 20  # lines; bytes of all but the last


def write_lines(file: IO[bytes], entries: Sequence[TransferEntry]) -> None:
    """Write a line for each entry."""
    for entry in entries:
        value = {"id": str(entry.id), "fields": fields_as_json(entry.texts())}
        file.write(json_text(value, separators=(",", ":")).encode() + b"\n")


def pages_of_lines(file: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines. One that is too long is the last, and is cut above LONGEST."""
    page: list[bytes] = []
    size = 0
    while line := file.readline(LONGEST + 1):
        page.append(line)
        size += len(line)
        if len(line) > LONGEST:
            break
        if len(page) == _PAGE or size > _PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def entry_of_line(line: bytes) -> TransferEntry | None:
    """Return the entry of a line, None for an empty line. Raises ValueError."""
    if len(line) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST:,} bytes; leave it out, or transfer it as Parquet")
    line = line.strip().removeprefix(codecs.BOM_UTF8)
    if not line:
        return None
    try:
        with limited_memory() if len(line) > _SHORT else nullcontext():
            value = parse_json(line)
    except MemoryError:
        raise ValueError(f"it needs more than {MOST_MEMORY >> 20} MiB of memory; leave it out") from None
    if member(value, "export") is not None:
        raise ValueError(
            "the file is an export with groups, which an import does not restore. Load it into a stream engine "
            "(LocalEngine.load), or export the stream again without --with-groups"
        )
    return TransferEntry.parse(*entry_in(value))


Write = Callable[[Sequence[TransferEntry]], None]

STANDARD = "-"  # standard output or input


def is_parquet(name: str) -> bool:
    """Whether a file of this name is Parquet. Raises InvalidOptionError."""
    ending = Path(name).suffix.lower()
    if name != STANDARD and ending not in (".jsonl", ".ndjson", ".parquet"):
        raise InvalidOptionError(
            f"{name!r} does not end in .jsonl, .ndjson or .parquet. rstream reads and writes no other form; - is JSON "
            "Lines. To load a CSV file, use the job load: rstream init load"
        )
    return ending == ".parquet"


_FORMS: dict[str, tuple[Callable[..., Iterator[Sequence[Any]]], Callable[[Any], TransferEntry | None]]] = {
    "row": (pages_of_rows, entry_of_row),
    "line": (pages_of_lines, entry_of_line),
}


def read_file(name: str) -> Iterator[list[TransferEntry]]:
    """Yield the entries of a file. Raises CopyFileError, which names the line, row or column that is no entry's."""
    unit = "row" if is_parquet(name) else "line"
    read, parse = _FORMS[unit]
    number, last = 0, MIN_ID
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if name == STANDARD else open(name, "rb") as file:
            for page in read(file):
                entries = []
                for item in page:
                    number += 1
                    try:
                        entry = parse(item)
                        if entry is not None and entry.id <= last:
                            raise ValueError(f"its ID {entry.id} is not above {last}; sort the file by its IDs")
                    except ValueError as error:
                        raise CopyFileError(
                            f"{unit} {number:,} of {name!r} is not an entry of a stream: {error}"
                        ) from None
                    if entry is not None:
                        entries.append(entry)
                        last = entry.id
                yield entries
    except MemoryError:
        raise CopyFileError(
            f"file {name!r} cannot be read: after {unit} {number:,} it needs more than {MOST_MEMORY >> 20} MiB of "
            "memory. Write the file with fewer rows in a row group, or without the large values, and run the command "
            "again"
        ) from None
    except ColumnError as error:
        raise CopyFileError(f"file {name!r} cannot be imported: {error}, and run the command again") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise CopyFileError(f"file {name!r} cannot be read: {error}; check its name and its form") from None


@contextlib.contextmanager
def write_file(name: str, head: bytes = b"") -> Iterator[Write]:
    """Yield a function that writes entries. A file is replaced when the block ends without an error. head: lines before
    the entries, not for Parquet. Raises CopyFileError."""
    if name == STANDARD:
        sys.stdout.buffer.write(head)
        yield lambda entries: write_lines(sys.stdout.buffer, entries)
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        # "x" opens no file and no link that another user has laid under this name.
        with partial.open("xb") as file:
            if is_parquet(name):
                with parquet_writer(file) as writer:
                    yield lambda entries: writer.write_batch(batch_of(entries))
            else:
                file.write(head)
                yield lambda entries: write_lines(file, entries)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise CopyFileError(f"file {name!r} cannot be written: {error}; check the folder and its free space") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
