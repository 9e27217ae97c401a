"""Entries as lines of JSON, as `rstream show --json` prints them.

    {"id": "1732097000000-0", "fields": {"customer": "ann", "photo": {"base64": "/9j/"}}}

If a field name is not UTF-8 or occurs twice, `fields` is a list of [name, value].
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import IO, Any

from spark_streams.deadletter.inspect.export import fields_as_json
from spark_streams.model.printable import is_utf8, json_text
from spark_streams.transfer.entries import Entry
from spark_streams.transfer.memory import MOST_MEMORY, limited_memory

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
            value = json.loads(line.decode(), object_pairs_hook=_Object)
    except MemoryError:
        raise ValueError(f"it needs more than {MOST_MEMORY >> 20} MiB of memory; leave it out") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} in column {error.colno}") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    entry_id, fields = _member(value, "id"), _member(value, "fields")
    if not isinstance(entry_id, str) or not isinstance(fields, list):
        raise ValueError('it is no JSON object with a text "id" and "fields"')
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in fields):
        raise ValueError('"fields" is no object and no list of [name, value]')
    return Entry.parse(entry_id, [_bytes(word) for pair in fields for word in pair])


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that no name is lost if it occurs twice."""


def _member(value: object, name: str) -> object:
    members = [member for key, member in value if key == name] if isinstance(value, _Object) else []
    if len(members) > 1:
        raise ValueError(f'"{name}" occurs twice')
    return members[0] if members else None


def _bytes(value: object) -> bytes:
    """Return the bytes of a text, or of {"base64": …}. Raises ValueError."""
    if isinstance(value, str):
        if not is_utf8(value):
            raise ValueError("a name or value has half of a surrogate pair, which is no character")
        return value.encode()
    if isinstance(value, _Object) and [name for name, _ in value] == ["base64"] and isinstance(value[0][1], str):
        return base64.b64decode(value[0][1], validate=True)
    raise ValueError('a name or value is no text and no {"base64": …}')
