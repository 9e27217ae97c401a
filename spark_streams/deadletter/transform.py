"""A user's function that repairs dead letters in a redrive.

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

import numpy as np
import pyarrow as pa

from spark_streams.deadletter.envelope import MARK, NAMES, raw, text
from spark_streams.deadletter.page import DeadLetterPage
from spark_streams.errors import TransformError
from spark_streams.wire.entries.lines import Index


@dataclass(frozen=True)
class DeadLetter:
    """Argument of the function. id: the dead letter's own; pairs: its original fields; envelope: names without `dl.`.

    Bytes that are not UTF-8 are surrogate escapes in the texts, as in os.fsdecode, and are written unchanged.
    """

    id: str
    pairs: list[tuple[str, str]]
    envelope: dict[str, str]

    @property
    def fields(self) -> dict[str, str]:
        """The original fields; the last one if a name occurs twice."""
        return dict(self.pairs)


# Returns the fields of the entry, or None not to move the dead letter. Values: str, bytes, int or float.
Transform = Callable[[DeadLetter], Mapping[str, object] | None]


def load(name: str) -> Transform:
    """Import the function `module:function`, also from the working directory. Raises TransformError."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise TransformError(f"transform {name!r} is not of the form module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        attribute = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise TransformError(f"transform {name!r}: {module} cannot be imported: {_first_line(error)}") from error
    if not callable(attribute):
        raise TransformError(f"transform {name!r}: module {module} has no function {function!r}")
    transform: Transform = attribute
    return transform


def apply(transform: Transform, page: DeadLetterPage, rows: Index) -> tuple[Index, pa.MapArray]:
    """Return (the repaired rows, their new fields). Raises TransformError for the first dead letter at which the
    function fails."""
    repaired: list[int] = []
    entries: list[list[tuple[bytes, bytes]]] = []
    for row, dead_letter in zip(rows.tolist(), dead_letters_of(page, rows), strict=True):
        try:
            fields = transform(dead_letter)
        except Exception as error:
            raise TransformError(
                f"the transform failed at dead letter {dead_letter.id}: {_first_line(error)}"
            ) from error
        if fields is not None:
            repaired.append(row)
            entries.append(_checked(fields, dead_letter.id))
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


def _checked(fields: object, dead_letter: str) -> list[tuple[bytes, bytes]]:
    if not isinstance(fields, Mapping) or not fields:
        raise TransformError(
            f"the transform returned {type(fields).__name__} for dead letter {dead_letter}. Return a dict of fields"
        )
    pairs = [(_bytes(name, dead_letter), _bytes(value, dead_letter)) for name, value in fields.items()]
    if any(name == MARK for name, _ in pairs):
        raise TransformError(
            f"the transform returned a field {text(MARK)} for dead letter {dead_letter}. Only redrive writes this field"
        )
    return pairs


def _bytes(value: object, dead_letter: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TransformError(
            f"the transform returned {value!r:.80} for dead letter {dead_letter}. Return str, bytes, int or float"
        )
    return raw(str(value))


def _first_line(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"
