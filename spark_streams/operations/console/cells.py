"""Values of entries on a page and in a form: text, or hexadecimal digits; long ones are cut. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from spark_streams.base.given_text import assignment
from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.errors import OptionError
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.console.incoming import (
    EDITABLE,
    EDITABLE_BYTES,
    EDITABLE_FIELDS,
    Parameters,
    encoded_size,
)

LONG = 1_000  # characters of a value on an entry's own page
SHORT = 120  # characters of a value in a list


class Cell(NamedTuple):
    """A value. text: what the page shows; size: bytes of the value, 0 if all of it is shown; is_binary: text is
    hexadecimal."""

    text: str
    size: int = 0
    is_binary: bool = False


class DecodedCell(NamedTuple):
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


Pairs = Sequence[tuple[str, str]]  # (name, value); bytes that are not UTF-8 are surrogate escapes


@dataclass(frozen=True)
class Field:
    """A field of an entry in a form."""

    number: int  # its place in the entry
    name: Cell
    value: Cell
    raw_name: str
    text: str | None  # the value for a form, None if a form cannot change it

    @property
    def rows(self) -> int:
        """Lines of the form's text area."""
        text = self.text or ""
        return min(8, max(1 + text.count("\n"), 1 + len(text) // 60))


def fields_of(pairs: Pairs, allowed: AllowList) -> list[Field]:
    """Return the first fields of an entry for a form. It cannot change a field whose values are hidden or whose name
    occurs twice, nor what would make the form too large. pairs: without hidden values."""
    occurring = Counter(name for name, _ in pairs)
    fields, rest = [], EDITABLE_BYTES
    for number, (name, value) in enumerate(pairs[:EDITABLE_FIELDS]):
        size = encoded_size(value)
        can_change = (
            size <= rest and allowed.shows(name) and is_editable(value) and is_editable(name) and occurring[name] == 1
        )
        rest -= size if can_change else 0
        fields.append(Field(number, cell(raw(name), SHORT), cell(raw(value)), name, value if can_change else None))
    return fields


def changes_of(pairs: Pairs, parameters: Parameters, allowed: AllowList) -> tuple[list[str], list[str]]:
    """Return what a form has changed in these fields: (NAME=VALUE of each one that is changed or added, names of
    removed ones). Raises OptionError for a new value without a name."""
    assigned, removed = [], []
    for field in fields_of(pairs, allowed):
        if field.text is None:
            continue
        if parameters.get(f"remove.{field.number}"):
            removed.append(field.raw_name)
        else:
            value = parameters.get(f"value.{field.number}", field.text)
            if value != field.text:
                assigned.append(assignment(field.raw_name, value))
    for name, value in zip_longest(parameters.all("new.name"), parameters.all("new.value"), fillvalue=""):
        if name:
            assigned.append(assignment(name, value))
        elif value:
            raise OptionError(f"the new value {value[:50]!r} has no field name; go back and write the name")
    return assigned, removed
