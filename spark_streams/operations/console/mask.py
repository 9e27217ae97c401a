"""Values of fields that a person may not see: a fixed text stands for them. Pure.

What reads entries (entry_search.py, pages/dead_letters.py) takes a mask and returns masked entries, so that searches,
pages, forms and exports have no other ones. What commands print passes through it as well (site.py, audit.py).

    card=4111                                    the field of this name
    order={"card": 4111, "n": 1}                 members of this name within JSON, also in a JSON text within JSON
    headers=[{"key": "card", "value": 4111}]     the other members of an object that names it; ["card", 4111]
    note=card 4111 was refused                   all of another text that names it and says more than the name
    dl.message=4111 was refused                  all of a dead letter's message, reason or error with a masked value
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from spark_streams.base.assignment import assignment, parse_assignment
from spark_streams.base.export_lines import JsonObject
from spark_streams.base.printable import is_utf8
from spark_streams.base.untyped import Json
from spark_streams.connector.admin.dead_letters import DeadLetter
from spark_streams.connector.deadletter.envelope import PREFIX, raw, text
from spark_streams.connector.errors import NotPermittedError
from spark_streams.operations.console.bounds import MASK
from spark_streams.operations.console.change import Change, Outcome
from spark_streams.operations.console.json_filter import LONGEST
from spark_streams.operations.monitor.last_entries import Seen

_NAMING = ("key", "name", "field", "k")  # members of a JSON object that names a field
_SAYING = tuple(PREFIX + name for name in ("message", "reason", "error"))  # fields of a dead letter that quote values


class _Number(str):
    """A number of JSON with its original digits."""


_AS_WRITTEN: dict[str, Any] = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), _Number)


@dataclass(frozen=True)
class Mask:
    """names: of fields; encoded: fields whose bytes hold others, of which only the decoded text is shown; of_writers:
    also for users with the role write. Without names nothing is masked."""

    names: frozenset[str] = frozenset()
    encoded: frozenset[str] = frozenset()
    of_writers: bool = False

    def __bool__(self) -> bool:
        return bool(self.names)

    def entry(self, entry: Seen) -> Seen:
        """Return the entry as it is shown."""
        if not self:
            return entry
        pairs = self.fields([(text(name), text(value)) for name, value in entry.pairs])
        return entry._replace(pairs=tuple((raw(name), raw(value)) for name, value in pairs))

    def letter(self, letter: DeadLetter) -> DeadLetter:
        """Return the dead letter as it is shown."""
        envelope = [(PREFIX + name, value) for name, value in letter.envelope.items()]
        pairs, size = self.fields([*letter.pairs, *envelope]), len(letter.pairs)
        shown = {name.removeprefix(PREFIX): value for name, value in pairs[size:]}
        return replace(letter, pairs=pairs[:size], envelope=shown)

    def fields(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the fields of an entry as they are shown. Bytes that are not UTF-8 are surrogate escapes."""
        hidden: list[str] = []
        shown = [(name, self.value(name, value, hidden)) for name, value in pairs]
        words = "|".join(re.escape(value) for value in hidden if value)
        quotes = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None
        return [
            (name, MASK if quotes is not None and name in _SAYING and quotes.search(value) else value)
            for name, value in shown
        ]

    def value(self, name: str, value: str, hidden: list[str] | None = None) -> str:
        """Return the value of a field as it is shown. hidden: receives each value for which the mask stands."""
        hidden = [] if hidden is None else hidden
        if self and (name in self.names or name in self.encoded):
            hidden.append(value)
            return MASK
        return self._text(value, hidden)

    def decoded(self, name: str, value: str) -> str:
        """Return the decoded value of a field as it is shown, or the reason why there is none."""
        return MASK if name in self.names and value else self.text(value)

    def text(self, value: str) -> str:
        """Return a text of a program, such as an error, as it is shown."""
        return self._text(value, [])

    def change(self, change: Change) -> Change:
        """Return the change as it is shown."""
        outcome = None if change.outcome is None else self.outcome(change.outcome)
        return replace(change, arguments=self.words(change.arguments), outcome=outcome)

    def words(self, words: Sequence[str]) -> list[str]:
        """Return the words of a command as they are shown."""
        pairs = [parse_assignment(word) or ("", "") for word in words]
        shown = [(name, value, self.value(name, value)) for name, value in pairs]
        return [
            word if hidden == value else assignment(name, hidden)
            for word, (name, value, hidden) in zip(words, shown, strict=True)
        ]

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return what a command has printed as it is shown."""
        return replace(outcome, output=self._output(outcome.output), error=self.text(outcome.error))

    def require_open(self, assignments: Iterable[str]) -> None:
        """Raise NotPermittedError if one of these texts NAME=VALUE has a value that the mask would change: an answer
        to it could say what the value is."""
        for name, value in filter(None, map(parse_assignment, assignments)):
            if self.value(name, value) != value:
                raise NotPermittedError(
                    f"values of field {name[:50]!r} are masked for you (--mask), so you can neither search by it nor "
                    "change it; leave it out, or ask a user who sees its values"
                )

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Finds names, also as JSON escapes them."""
        forms = {form for name in self.names for form in (name, json.dumps(name)[1:-1])}
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, forms))})(?!\w)")

    def _text(self, value: str, hidden: list[str]) -> str:
        is_named = bool(self) and self._pattern.search(value) is not None
        if not self or not (is_named or "\\u" in value) or value.strip() in self.names:
            return value
        parsed: Json = None
        with contextlib.suppress(ValueError, RecursionError):
            if len(value) <= LONGEST:
                parsed = json.loads(value, object_pairs_hook=JsonObject, **_AS_WRITTEN)
            if isinstance(parsed, list):
                return self._json(parsed, hidden)
        if isinstance(parsed, str) and not isinstance(parsed, _Number):
            return _quoted(self._text(parsed, hidden))
        hidden += [value] if is_named else []
        return MASK if is_named or isinstance(parsed, list) else value  # a list: it is nested too deeply

    def _json(self, value: Json, hidden: list[str]) -> str:
        if isinstance(value, JsonObject):
            is_naming = any(key in _NAMING and member in self.names for key, member in value if isinstance(member, str))
            members = [
                (key, self._hide(member, hidden) if key in self.names or (is_naming and key not in _NAMING)
                 else self._json(member, hidden))
                for key, member in value
            ]  # fmt: skip
            return "{" + ", ".join(f"{_quoted(key)}: {member}" for key, member in members) + "}"
        if isinstance(value, list):
            items = [
                self._hide(item, hidden)
                if isinstance(before, str) and before in self.names
                else self._json(item, hidden)
                for before, item in pairwise([None, *value])
            ]
            return f"[{', '.join(items)}]"
        if isinstance(value, str) and not isinstance(value, _Number):
            return _quoted(self._text(value, hidden))
        return str(value) if isinstance(value, _Number) else json.dumps(value)

    def _hide(self, value: Json, hidden: list[str]) -> str:
        if isinstance(value, str):
            hidden.append(value)
        for part in value if isinstance(value, list | tuple) else ():
            self._hide(part, hidden)
        return _quoted(MASK)

    def _output(self, value: Json) -> Json:
        """Return a value of a command's output: rows with `field` have its values, and lists have sentences."""
        if isinstance(value, dict):
            name = value.get("field")
            return {
                key: self.value(str(name), part) if name is not None and key in ("value", "now", "then") and part
                else self.text(part) if key == "reason" and part
                else part if key == "bounds" else self._output(part)
                for key, part in value.items()
            }  # fmt: skip
        if isinstance(value, list):
            return [self.text(part) if isinstance(part, str) else self._output(part) for part in value]
        return value


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=not is_utf8(value))
