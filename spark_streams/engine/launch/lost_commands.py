"""Drop the last commands of an append-only file, as a power failure may."""

from __future__ import annotations

import re
from pathlib import Path

_COUNT = re.compile(rb"\*(\d+)\r\n")
_LENGTH = re.compile(rb"\$(\d+)\r\n")


def drop_last_commands(file: Path, count: int) -> None:
    """Cut the file before its last `count` commands. A transaction counts as one command, SELECT as none. The file is
    complete: the engine has written it to its end."""
    data = file.read_bytes()
    ends, offset, is_open = [0], 0, False
    while offset < len(data):
        name, offset = _command(data, offset)
        is_open = name == b"multi" or (is_open and name != b"exec")
        if not is_open and name != b"select":
            ends.append(offset)
    with file.open("r+b") as opened:
        opened.truncate(ends[max(len(ends) - 1 - count, 0)] if count else len(data))


def _command(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return the name of the command at this offset, and the offset behind it."""
    head = _COUNT.match(data, offset)
    assert head is not None, f"no command at offset {offset}"
    name, offset = b"", head.end()
    for index in range(int(head[1])):
        length = _LENGTH.match(data, offset)
        assert length is not None, f"no argument at offset {offset}"
        start, offset = length.end(), length.end() + int(length[1]) + 2
        name = data[start : offset - 2].lower() if index == 0 else name
    return name, offset
