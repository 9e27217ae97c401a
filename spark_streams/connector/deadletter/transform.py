"""A user's function that repairs dead letters in a redrive, or changes entries that are copied (transfer/).

def repair(dead_letter):                  # --transform module:repair
    if dead_letter.fields.get("amount") == "n/a":
        return {**dead_letter.fields, "amount": "0"}
    return None                           # do not move this dead letter
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_streams.connector.deadletter.envelope import MARK, NAMES, raw, text
from spark_streams.connector.deadletter.page import DeadLetterPage
from spark_streams.connector.errors import TransformError
from spark_streams.connector.wire.address import address as allowed
from spark_streams.connector.wire.entries.lines import Index


@dataclass(frozen=True)
class StreamEntry:
    """Argument of the function for an entry. pairs: its fields.

    Bytes that are not UTF-8 are surrogate escapes in the texts, as in os.fsdecode, and are written unchanged.
    """

    id: str
    pairs: list[tuple[str, str]]

    @property
    def fields(self) -> dict[str, str]:
        """The fields; the last one if a name occurs twice."""
        return dict(self.pairs)


@dataclass(frozen=True)
class DeadLetter(StreamEntry):
    """Argument of the function for a dead letter. id: its own; pairs: its original fields; envelope: names without
    `dl.`."""

    envelope: dict[str, str]


# Returns the fields of the entry, or None not to move the dead letter. Values: str, bytes, int or float.
Transform = Callable[[DeadLetter], Mapping[str, object] | None]
Loaded = Callable[[Any], Any]


def load(name: str) -> Loaded:
    """Import the function `module:function`, also from the working directory, which comes last: a file there does not
    replace a module of Python or of a package. Raises TransformError, NotAllowedError."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise TransformError(f"transform {name!r} is not of the form module:function")
    allowed.check_function("transform", name)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        attribute = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise TransformError(f"transform {name!r}: {module} cannot be imported: {_first_line(error)}") from error
    if not callable(attribute):
        raise TransformError(f"transform {name!r}: module {module} has no function {function!r}")
    loaded: Loaded = attribute
    return loaded


def apply(transform: Transform, page: DeadLetterPage, rows: Index) -> tuple[Index, pa.MapArray]:
    """Return (the repaired rows, their new fields). Raises TransformError for the first dead letter at which the
    function fails."""
    repaired: list[int] = []
    entries: list[list[tuple[bytes, bytes]]] = []
    for row, dead_letter in zip(rows.tolist(), dead_letters_of(page, rows), strict=True):
        where = f"dead letter {dead_letter.id}"
        fields = call(transform, dead_letter, where)
        if fields is not None:
            repaired.append(row)
            entries.append(_without_mark(encode_fields(fields, where), where))
    return np.array(repaired, np.int64), pa.array(entries, pa.map_(pa.binary(), pa.binary()))


def dead_letters_of(page: DeadLetterPage, rows: Index) -> list[DeadLetter]:
    """Return these rows as objects."""
    indices = pa.array(rows)
    ids = page.ids.take(indices).to_pylist()
    originals = page.originals(rows).to_pylist()
    columns = {name: page.envelope_column(name).take(indices).to_pylist() for name in NAMES}
    return [
        DeadLetter(
            text(entry_id),
            [(text(name), text(value)) for name, value in fields],
            {name: text(values[row]) for name, values in columns.items() if values[row] is not None},
        )
        for row, (entry_id, fields) in enumerate(zip(ids, originals, strict=True))
    ]


def call(transform: Loaded, entry: StreamEntry, where: str) -> object:
    """Return the result of the function. where: the entry, for messages. Raises TransformError."""
    try:
        return transform(entry)
    except TransformError:
        raise  # it names the entry
    except Exception as error:
        raise TransformError(f"the transform failed at {where}: {_first_line(error)}") from error


def encode_fields(fields: object, where: str) -> list[tuple[bytes, bytes]]:
    """Return the fields that the function has returned, a dict or a list of (name, value), as bytes. Raises
    TransformError."""
    pairs = list(fields.items()) if isinstance(fields, Mapping) else fields
    if not isinstance(pairs, list) or not pairs or not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        raise TransformError(f"the transform returned {type(fields).__name__} for {where}. Return a dict of fields")
    return [(_bytes(name, where), _bytes(value, where)) for name, value in pairs]


def _without_mark(pairs: list[tuple[bytes, bytes]], where: str) -> list[tuple[bytes, bytes]]:
    if any(name == MARK for name, _ in pairs):
        raise TransformError(f"the transform returned a field {text(MARK)} for {where}. Only redrive writes this field")
    return pairs


def _bytes(value: object, where: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TransformError(f"the transform returned {value!r:.80} for {where}. Return str, bytes, int or float")
    return raw(str(value))


def _first_line(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"
