"""Files of entries: JSON Lines (`*.jsonl`, `*.ndjson`, `-`) and Parquet (`*.parquet`).

Both hold IDs and fields byte for byte, in their order. A file may come from anyone, so a page of it may take a limited
amount of memory.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_streams.base.ids import MIN_ID
from spark_streams.connector.errors import CopyFileError, InvalidOptionError
from spark_streams.operations.transfer.entries import Entry
from spark_streams.operations.transfer.json_lines import entry_of_line, pages_of_lines, write_lines
from spark_streams.operations.transfer.memory import MOST_MEMORY
from spark_streams.operations.transfer.parquet import ColumnError, batch_of, entry_of_row, pages_of_rows, parquet_writer

Write = Callable[[Sequence[Entry]], None]

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


_FORMS: dict[str, tuple[Callable[..., Iterator[Sequence[Any]]], Callable[[Any], Entry | None]]] = {
    "row": (pages_of_rows, entry_of_row),
    "line": (pages_of_lines, entry_of_line),
}


def read_file(name: str) -> Iterator[list[Entry]]:
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
        return
    path = Path(name)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
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
