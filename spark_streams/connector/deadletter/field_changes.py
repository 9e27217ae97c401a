"""Changes of fields that a user names, made to each dead letter that is sent back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.base.given_text import parse_assignment
from spark_streams.connector.deadletter.envelope import MARK, raw, text
from spark_streams.connector.deadletter.transform import DeadLetter, Loaded, StreamEntry, encode_fields
from spark_streams.connector.errors import InvalidOptionError, TransformError

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
        """Return what the function returns."""
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
