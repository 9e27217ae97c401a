"""Changes of fields that a user names, made to each dead letter that is sent back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.deadletter.envelope import MARK, text
from spark_streams.deadletter.transform import DeadLetter
from spark_streams.errors import InvalidOptionError, TransformError
from spark_streams.model.assignment import parse_assignment


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

    def apply(self, letter: DeadLetter) -> list[tuple[str, str]]:
        """Return the fields of a dead letter after the changes. Raises TransformError."""
        names = [name for name, _ in letter.pairs]
        values = dict(self.assigned)
        for name in (*values, *self.removed):
            if names.count(name) > 1:
                raise TransformError(
                    f"dead letter {letter.id} has the field {name!r} {names.count(name)} times, so it is not clear "
                    "which one to change. Use a transform, or leave this dead letter out"
                )
        changed = [(name, values.get(name, value)) for name, value in letter.pairs if name not in self.removed]
        changed += [(name, value) for name, value in self.assigned if name not in names]
        if not changed:
            raise TransformError(f"dead letter {letter.id} would have no field left. Keep one, or delete it instead")
        return changed
