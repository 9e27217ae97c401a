"""Values of entries on a page: text, or hexadecimal digits; long ones are cut. Pure."""

from __future__ import annotations

from typing import NamedTuple

from spark_streams.operations.console.bounds import EDITABLE

LONG = 1_000  # characters of a value on an entry's own page
SHORT = 120  # characters of a value in a list


class Cell(NamedTuple):
    """A value. text: what the page shows; size: bytes of the value, 0 if all of it is shown; is_binary: text is
    hexadecimal."""

    text: str
    size: int = 0
    is_binary: bool = False


class Decoded(NamedTuple):
    """A decoded value. reason: why there is none, else empty."""

    value: Cell
    reason: str


def cell(value: bytes, length: int = LONG) -> Cell:
    """Return the value for a page. length: characters."""
    head = value[: 4 * length]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) == len(value) or error.start < len(head) - 3:  # a cut character is no reason
            digits = value[: length // 2].hex()
            return Cell(f"0x{digits}", len(value) if len(value) > length // 2 else 0, True)
        text = head[: error.start].decode()
    is_whole = len(head) == len(value) and len(text) <= length
    return Cell(text[:length], 0 if is_whole else len(value))


def is_editable(value: str) -> bool:
    """Whether a browser's form returns this value unchanged."""
    return len(value) <= EDITABLE and all(line.isprintable() for line in value.split("\n"))
