"""Values that a page may show: `--show FIELD,…`. Of all others it says only how long they are. Pure.

Without --show, everything is shown. With it, these are hidden on every page, in exports and in the audit log:

    values of fields that are not named, decoded or not
    dl.reason, dl.error and dl.message of dead letters, unless they are named; messages of failed queries
    of commands that read entries: what they say of errors, and each text that is no name and no ID

What reads entries (entry_search.py, pages/dead_letters.py) takes the list and returns entries without hidden values, so
pages, forms and exports have no other ones. A search by a hidden field is refused: its answer would say what it holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.given_text import assignment, parse_assignment
from spark_streams.base.units import counted
from spark_streams.base.untyped import Json
from spark_streams.connector.admin.dead_letters import DeadLetter
from spark_streams.connector.deadletter.envelope import PREFIX, raw, text
from spark_streams.connector.errors import NotPermittedError
from spark_streams.operations.monitor.last_entries import Seen

_QUOTING = ("reason", "error", "message")  # of an envelope, and of what a command prints: they may quote any value
_READING = (("add",), ("dead", "redrive"), ("dead", "purge"))  # commands that read entries
# Keys of what these commands print whose texts are names, IDs or words of the program.
_NAMES = frozenset(
    {"stream", "to", "action", "stage", "dead letter", "field", "bound", "bounds", "refused"}
    | {"first", "last", "last_id"}
)
_CONDITION = re.compile("RSTREAM_[A-Z_]+")


def hidden(value: str) -> str:
    """Return what stands in the place of a value. A command has cut one that ends with `…`."""
    return "hidden" if value.endswith("…") else f"hidden ({counted(len(raw(value)), 'byte')})"


@dataclass(frozen=True)
class AllowList:
    """names: of the fields that are shown; None: all values are."""

    names: frozenset[str] | None = None

    def shows(self, name: str) -> bool:
        """Whether the values of this field are shown."""
        return self.names is None or name in self.names

    def value(self, name: str, value: str) -> str:
        """Return the value of a field as it is shown."""
        return value if self.shows(name) else hidden(value)

    def text(self, value: str) -> str:
        """Return a text that may quote values, such as an error, as it is shown."""
        return value if self.names is None or not value else hidden(value)

    def entry(self, entry: Seen) -> Seen:
        """Return the entry as it is shown."""
        if self.names is None:
            return entry
        return entry._replace(
            pairs=tuple((name, raw(self.value(text(name), text(value)))) for name, value in entry.pairs)
        )

    def letter(self, letter: DeadLetter) -> DeadLetter:
        """Return the dead letter as it is shown."""
        pairs = [(name, self.value(name, value)) for name, value in letter.pairs]
        quoting = {name: self.envelope_value(name, letter.envelope.get(name, "")) for name in _QUOTING}
        return replace(letter, pairs=pairs, envelope={**letter.envelope, **quoting})

    def envelope_value(self, name: str, value: str) -> str:
        """Return a value of an envelope as it is shown. name: without `dl.`."""
        return self.value(PREFIX + name, value) if value and name in _QUOTING else value

    def condition(self, value: str) -> str:
        """Return the error of a failed query as it is shown: conditions of this product are."""
        return value if _CONDITION.fullmatch(value) else self.text(value)

    def words(self, arguments: Sequence[str]) -> list[str]:
        """Return the words of a command as they are shown: NAME=VALUE without the value of a hidden field."""
        if self.names is None or not _reads_entries(arguments):
            return list(arguments)
        pairs = [parse_assignment(word) for word in arguments]
        return [
            word if pair is None or self.shows(pair[0]) else assignment(pair[0], hidden(pair[1]))
            for word, pair in zip(arguments, pairs, strict=True)
        ]

    def printed(self, arguments: Sequence[str], output: Json, error: str) -> tuple[Json, str]:
        """Return what a command with these arguments has printed, its JSON document and its error, as it is shown."""
        if self.names is None or not _reads_entries(arguments):
            return output, error
        return self._output(output, "", ""), self.text(error)

    def require_shown(self, parameters: Mapping[str, Sequence[str]]) -> None:
        """Raise NotPermittedError if one of these parameters asks for a hidden value of a dead letter, or would change
        one: the answer could say what it is. parameters: reason, error; field, set: NAME=VALUE."""
        names = [PREFIX + name for name in _QUOTING if any(parameters.get(name, ()))]
        pairs = [parse_assignment(word) for key in ("field", "set") for word in parameters.get(key, ())]
        for name in (*names, *(pair[0] for pair in pairs if pair is not None)):
            self.require_field(name)

    def require_field(self, name: str) -> None:
        """Raise NotPermittedError if the values of this field are hidden. name: empty for a search of all fields."""
        if not self.shows(name):
            named = f"values of field {name[:50]!r} are" if name else "values of some fields are"
            raise NotPermittedError(
                f"{named} hidden in this console (--show), so you can neither search by them nor change them; name a "
                f"field that is shown: {', '.join(sorted(self.names or ()))[:200]}"
            )

    def _output(self, value: Json, key: str, field: str) -> Json:
        """Return a part of a command's output. key: its name in the object around it; field: of the row that has it."""
        if isinstance(value, dict):
            return {name: self._output(part, name, str(value.get("field", ""))) for name, part in value.items()}
        if isinstance(value, list):
            return [self._output(part, key, field) for part in value]
        is_of_field = (key in ("value", "now", "then") and self.shows(field)) or (
            key in _QUOTING and self.shows(PREFIX + key)
        )
        return value if key in _NAMES or is_of_field or not isinstance(value, str) else self.text(value)


def _reads_entries(arguments: Sequence[str]) -> bool:
    return any(tuple(arguments[: len(command)]) == command for command in _READING)
