"""A user's function that repairs dead letters on their way back.

def repair(letter):                       # --transform module:repair
    if letter.fields.get("amount") == "n/a":
        return {**letter.fields, "amount": "0"}
    return None                           # leave this dead letter where it is
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
    """What the function is given. id: the dead letter's own; pairs: its original fields; envelope: names without `dl.`.

    Texts; bytes that are no UTF-8 are surrogate escapes in them, as in os.fsdecode, and come back as they were.
    """

    id: str
    pairs: list[tuple[str, str]]
    envelope: dict[str, str]

    @property
    def fields(self) -> dict[str, str]:
        """The original fields; the last one where a name comes twice."""
        return dict(self.pairs)


# Gives the fields of the entry, or None to leave the dead letter. Values: str, bytes, int or float.
Transform = Callable[[DeadLetter], Mapping[str, object] | None]


def load(name: str) -> Transform:
    """The function `module:function`; the working directory is looked in, too. Raises TransformError."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise TransformError(f"transform {name!r} is not module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise TransformError(f"transform {name!r}: {module} cannot be imported: {_first_line(error)}") from error
    if not callable(found):
        raise TransformError(f"transform {name!r}: module {module} has no function {function!r}")
    transform: Transform = found
    return transform


def apply(transform: Transform, page: DeadLetterPage, rows: Index) -> tuple[Index, pa.MapArray]:
    """(the rows that go, their new fields). Raises TransformError for the first dead letter that cannot be repaired."""
    gone: list[int] = []
    entries: list[list[tuple[bytes, bytes]]] = []
    for row, letter in zip(rows.tolist(), dead_letters_of(page, rows), strict=True):
        try:
            fields = transform(letter)
        except Exception as error:
            raise TransformError(f"the transform failed at dead letter {letter.id}: {_first_line(error)}") from error
        if fields is not None:
            gone.append(row)
            entries.append(_checked(fields, letter.id))
    return np.array(gone, np.int64), pa.array(entries, pa.map_(pa.binary(), pa.binary()))


def dead_letters_of(page: DeadLetterPage, rows: Index) -> list[DeadLetter]:
    """These rows as objects."""
    kept = pa.array(rows)
    ids = page.ids.take(kept).to_pylist()
    originals = page.originals(rows).to_pylist()
    told = {name: page.told(name).take(kept).to_pylist() for name in NAMES}
    return [
        DeadLetter(
            text(one),
            [(text(name), text(value)) for name, value in fields],
            {name: text(values[at]) for name, values in told.items() if values[at] is not None},
        )
        for at, (one, fields) in enumerate(zip(ids, originals, strict=True))
    ]


def _checked(fields: object, letter: str) -> list[tuple[bytes, bytes]]:
    if not isinstance(fields, Mapping) or not fields:
        raise TransformError(
            f"the transform gave {type(fields).__name__} for dead letter {letter}, not a dict of fields"
        )
    pairs = [(_bytes(name, letter), _bytes(value, letter)) for name, value in fields.items()]
    if any(name == MARK for name, _ in pairs):
        raise TransformError(
            f"the transform gave a field {text(MARK)} for dead letter {letter}: redrive itself writes it"
        )
    return pairs


def _bytes(value: object, letter: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TransformError(
            f"the transform gave {value!r:.80} for dead letter {letter}: write str, bytes, int or float"
        )
    return raw(str(value))


def _first_line(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"
