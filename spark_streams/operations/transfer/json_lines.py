"""Entries as lines of JSON, as `rstream show --json` prints them. The form: base/export_lines.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import IO

from spark_streams.base.export_lines import entry_in, member, parse_json
from spark_streams.base.printable import json_text
from spark_streams.connector.deadletter.listing import fields_as_json
from spark_streams.operations.transfer.entries import Entry
from spark_streams.operations.transfer.memory import MOST_MEMORY, limited_memory

LONGEST = 32 << 20  # bytes of a line
_SHORT = 1 << 20  # bytes of a line whose objects take little memory in any case
_PAGE, _PAGE_BYTES = 1_000, 4 << 20  # lines; bytes of all but the last


def write_lines(file: IO[bytes], entries: Sequence[Entry]) -> None:
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


def entry_of_line(line: bytes) -> Entry | None:
    """Return the entry of a line, None for an empty line. Raises ValueError."""
    if len(line) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST:,} bytes; leave it out, or transfer it as Parquet")
    line = line.strip()
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
    return Entry.parse(*entry_in(value))
