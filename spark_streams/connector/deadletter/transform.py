"""A user's function that repairs dead letters in a redrive, or changes entries that are copied (transfer/); and changes
of fields that a user names.

def repair(dead_letter):                  # --transform module:repair
    if dead_letter.fields.get("amount") == "n/a":
        return {**dead_letter.fields, "amount": "0"}
    return None                           # do not move this dead letter
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_streams.base.given_text import parse_assignment
from spark_streams.connector.deadletter.envelope import MARK, raw, text
from spark_streams.connector.errors import InvalidOptionError, TransformError
from spark_streams.connector.wire import address as allowed


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


def without_mark(pairs: list[tuple[bytes, bytes]], where: str) -> list[tuple[bytes, bytes]]:
    """Return the fields. Raises TransformError if one is the mark of a redrive."""
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


_MOST_LETTERS = 10  # whose fields a dry run shows before and after
_LONGEST = 200  # bytes of a value that it shows


class FieldPreview:
    """Calls a function that changes dead letters, and remembers what it has changed in the first ones.

    rows: for each field that is changed: the dead letter, the field, its value, and its value afterwards; None: no such
    field.
    """

    def __init__(self, transform: Loaded) -> None:
        self._transform = transform
        self._rows: dict[str, list[dict[str, str | None]]] = {}

    def __call__(self, letter: DeadLetter) -> object:
        fields = self._transform(letter)
        if fields is not None and (letter.id in self._rows or len(self._rows) < _MOST_LETTERS):
            before = {raw(name): raw(value) for name, value in letter.pairs}
            after = dict(encode_fields(fields, f"dead letter {letter.id}"))
            self._rows[letter.id] = [
                {
                    "dead letter": letter.id,
                    "field": text(name),
                    "now": _cut(before.get(name)),
                    "then": _cut(after.get(name)),
                }
                for name in {**before, **after}
                if before.get(name) != after.get(name)
            ]
        return fields

    @property
    def rows(self) -> list[dict[str, str | None]]:
        return [row for rows in self._rows.values() for row in rows]


def _cut(value: bytes | None) -> str | None:
    return None if value is None else text(value) if len(value) <= _LONGEST else f"{text(value[:_LONGEST])}…"


@dataclass(frozen=True)
class FieldChanges:
    """assigned: (name, value) of fields that are replaced in place, or appended; removed: names of fields."""

    assigned: tuple[tuple[str, str], ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def parse(cls, assignments: Sequence[str] = (), removed: Sequence[str] = ()) -> FieldChanges:
        """Parse changes. assignments: NAME=VALUE. Raises InvalidOptionError."""
        pairs = []
        for assignment in assignments:
            pair = parse_assignment(assignment)
            if pair is None:
                raise InvalidOptionError(f"set={assignment[:100]!r} is not of the form NAME=VALUE")
            pairs.append(pair)
        names = [name for name, _ in pairs] + list(removed)
        for name in names:
            if names.count(name) > 1:
                raise InvalidOptionError(f"field {name!r} is named twice in set and unset; name each field once")
            if name == text(MARK):
                raise InvalidOptionError(f"field {name!r} cannot be changed: only a redrive writes it")
        return cls(tuple(pairs), tuple(removed))

    def __bool__(self) -> bool:
        return bool(self.assigned or self.removed)

    def apply(self, entry: StreamEntry, kind: str = "dead letter") -> list[tuple[str, str]]:
        """Return the fields of an entry after the changes. kind: of the entry, for messages. Raises TransformError."""
        names = [name for name, _ in entry.pairs]
        values = dict(self.assigned)
        for name in (*values, *self.removed):
            if names.count(name) > 1:
                raise TransformError(
                    f"{kind} {entry.id} has the field {name!r} {names.count(name)} times, so it is not clear which one "
                    f"to change. Leave this {kind} out, or write all its fields yourself (of dead letters: --transform)"
                )
        changed = [(name, values.get(name, value)) for name, value in entry.pairs if name not in self.removed]
        changed += [(name, value) for name, value in self.assigned if name not in names]
        if not changed:
            raise TransformError(f"{kind} {entry.id} would have no field left. Keep one field")
        return changed
