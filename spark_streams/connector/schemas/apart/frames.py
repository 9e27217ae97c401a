"""What a process that decodes values answers, and what it may take. Pure."""

from __future__ import annotations

import struct
from typing import IO, NamedTuple

SECONDS = 10.0  # that the values of a page may take together
MEMORY = 512 << 20  # bytes beyond what the process has when it begins
LONGEST = 16 << 20  # bytes of a value's JSON
TEXT, REASON, REGISTRY = range(3)  # kinds of a frame
TOO_LONG = "not decoded: it took too long"
TOO_LARGE = "not decoded: it needs too much memory"
_HEAD = struct.Struct(">BI")


class Shown(NamedTuple):
    """A value of a field that is decoded. text: JSON in UTF-8; reason: why there is none, else empty."""

    text: bytes
    reason: str = ""


class Frame(NamedTuple):
    """An answer. content: a value's JSON, a reason, or the message of an error of a registry."""

    kind: int
    content: bytes

    def write(self, file: IO[bytes]) -> None:
        """Write the frame."""
        file.write(_HEAD.pack(self.kind, len(self.content)) + self.content)
        file.flush()


def read_frame(file: IO[bytes]) -> Frame:
    """Read a frame. Raises EOFError if there is none, or no whole one."""
    head = file.read(_HEAD.size)
    kind, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (-1, 0)
    content = file.read(min(length, LONGEST))
    if kind not in (TEXT, REASON, REGISTRY) or len(content) != length:
        raise EOFError
    return Frame(kind, content)
