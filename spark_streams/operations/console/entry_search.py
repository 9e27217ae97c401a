"""Entries of a stream, the newest first, with a search by field, also within JSON. Nothing on the server changes.

A page is read in portions that are smaller if entries are large, so its memory does not depend on the size of entries:
it ends early if its entries have more than some megabytes, or if the search has read many entries.

A comparison within a JSON text: `$.amount > 100`, `$.items[*].sku = "a-1"`, `$ >= 5`

    path        $ with .name, ["name"], [0], [*] (any element or value)
    operator    = != < <= > >= ~ (contains)
    value       as in JSON: 100, -0.5, "text", true, false, null

Numbers are compared digit by digit, as decimals: a JSONPath library compares them as floats, and is slower.
"""

from __future__ import annotations

import json
import math
import operator
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.base.untyped import Json
from spark_streams.connector.errors import OptionError
from spark_streams.connector.wire.connection import PageSizer, ReplyError, Server
from spark_streams.operations.console.allow_list import AllowList
from spark_streams.operations.monitor.last_entries import Seen, entries_of

LONGEST = 1 << 20  # bytes of a value that is compared: a value of JSON takes many times its bytes of memory
MOST_STEPS = 100
_BETWEEN_CLOCKS = 1_000  # values between two readings of the clock
_STEP = re.compile(r"""\.([^\s.\[\]"'=!<>~]+)|\[("(?:[^"\\]|\\.)*"|[0-9]{1,9}|\*)\]""")
_REST = re.compile(r"\s*(!=|<=|>=|==?|<|>|~)\s*(.+?)\s*", re.DOTALL)
_OPERATORS: dict[str, Callable[[Json, Json], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": operator.contains,
}
_Step = str | int | None  # None: any


@dataclass(frozen=True)
class JsonFilter:
    """steps: from `$` to the values; operator, operand: what one of them is compared with."""

    steps: tuple[_Step, ...]
    operator: str
    operand: Json

    @classmethod
    def parse(cls, text: str) -> JsonFilter:
        """Raises OptionError."""
        plain, steps = text.strip(), list[_Step]()
        place = 1
        while match := _STEP.match(plain, place):
            steps.append(_step(match))
            place = match.end()
            if len(steps) > MOST_STEPS:
                _refuse(text, f"its path has more than {MOST_STEPS} steps")
        rest = _REST.fullmatch(plain, place)
        if not plain.startswith("$") or rest is None:
            _refuse(text, "it is not a path, an operator and a value")
        sign, operand = rest[1], _operand(text, rest[2])
        if sign == "~" and not isinstance(operand, str):
            _refuse(text, "~ needs a text in double quotes")
        if sign[0] in "<>" and not isinstance(operand, str | Decimal):
            _refuse(text, f"{sign} needs a number, or a text in double quotes")
        return cls(tuple(steps), sign, operand)

    def matches(self, value: bytes, until: float = math.inf) -> bool | None:
        """Whether one of the values at the path compares so; None if the value is no JSON. Values of different types
        are not equal, and have no order. Raises TimeoutError after `until` (time.monotonic)."""
        try:
            found: list[Json] = [_parsed(value.decode())]
        except (ValueError, InvalidOperation, RecursionError):
            return None
        for step in self.steps:
            found = _children(found, step, until)
        compare, kind = _OPERATORS[self.operator], type(self.operand)
        return any(compare(one, self.operand) if type(one) is kind else self.operator == "!=" for one in found)


def _parsed(text: str) -> Json:
    return json.loads(text, parse_int=Decimal, parse_float=_number, parse_constant=_no_number)


def _number(text: str) -> Decimal:
    """Return a number; beyond the exponents of decimals the infinity or the least number of its sign."""
    try:
        return Decimal(text)
    except InvalidOperation:
        mantissa, _, exponent = text.lower().partition("e")
        unit = "1e-999999999999999999" if exponent.startswith("-") else "Infinity"
        return Decimal(f"-{unit}" if mantissa.startswith("-") else unit) if mantissa.strip("-0.") else Decimal(0)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")


def _step(match: re.Match[str]) -> _Step:
    inner = match[2]
    if inner is None:
        return match[1]
    return None if inner == "*" else json.loads(inner, strict=False) if inner[0] == '"' else int(inner)


def _operand(text: str, word: str) -> Json:
    try:
        operand = _parsed(word)
    except (ValueError, InvalidOperation, RecursionError):
        _refuse(text, f"{word[:50]!r} is not JSON; write a text in double quotes")
    return operand if not isinstance(operand, list | dict) else _refuse(text, "the value is a list or an object")


def _children(values: list[Json], step: _Step, until: float) -> list[Json]:
    children: list[Json] = []
    for number, value in enumerate(values):
        if number % _BETWEEN_CLOCKS == 0 and time.monotonic() > until:
            raise TimeoutError
        if step is None and isinstance(value, list | dict):
            children += value.values() if isinstance(value, dict) else value
        elif isinstance(step, str) and isinstance(value, dict):
            children += [value[step]] if step in value else []
        elif isinstance(step, int) and isinstance(value, list):
            children += value[step : step + 1]
    return children


def _refuse(text: str, why: str) -> NoReturn:
    raise OptionError(
        f"{text[:100]!r} is not a comparison of JSON: {why}. "
        'Examples: $.amount > 100, $.items[*].sku = "a-1", $.name ~ "ann"'
    )


PAGE = 50  # entries
_FIRST, _LARGEST, _REPLY_BYTES = 2, 1_000, 4 << 20
_PAGE_BYTES = 32 << 20  # of the entries of a page
_SEARCHED = 50_000  # entries that one request reads at most
_SEARCH_SECONDS = 2.0


@dataclass(frozen=True)
class FieldFilter:
    """A search: entries that have this field (empty: any field) whose value contains this text, and compares so."""

    name: str = ""
    value: str = ""
    json: JsonFilter | None = None

    def __bool__(self) -> bool:
        return bool(self.name or self.value or self.json)

    def candidates(self, pairs: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
        """Yield the values of the field that contain the text."""
        name, value = (text.encode("utf-8", "surrogateescape") for text in (self.name, self.value))
        return (content for field, content in pairs if (not name or field == name) and value in content)

    def matches(self, candidates: Sequence[bytes], until: float) -> tuple[bool, int]:
        """Return whether an entry with these values matches, and how many of those before the first match are no JSON.
        Raises TimeoutError after `until` (time.monotonic)."""
        if self.json is None:
            return bool(candidates), 0
        no_json = 0
        for value in candidates:
            if len(value) > LONGEST:
                continue
            if time.monotonic() > until:
                raise TimeoutError
            is_match = self.json.matches(value, until)
            if is_match:
                return True, no_json
            no_json += is_match is None
        return False, no_json


@dataclass(frozen=True)
class FoundEntries:
    """The entries of a page, the newest first."""

    entries: tuple[Seen, ...]
    searched: int  # how many were read
    next: StreamId | None  # at which the next page begins, None if the stream has no more
    too_long: int = 0  # values that were too long for a comparison of JSON
    too_slow: int = 0  # entries whose comparison was given up
    no_json: int = 0  # values that were compared, and are no JSON


def read_entries(
    server: Server,
    streams: Sequence[str | bytes],
    allowed: AllowList,
    end: StreamId = MAX_ID,
    begin: StreamId = MIN_ID,
    fields: FieldFilter | None = None,
    limit: int = PAGE,
) -> FoundEntries:
    """Return up to `limit` entries from `end` back to `begin`, of all these streams together, without hidden values.
    streams: one stream, or all shards of one. Raises WrongKeyTypeError, NotPermittedError, ServerError."""
    sizer = PageSizer(_FIRST, _LARGEST, _REPLY_BYTES, growth=5)
    matching: list[Seen] = []
    deadline, searched, taken, too_long, too_slow, no_json = time.monotonic() + _SEARCH_SECONDS, 0, 0, 0, 0, 0
    upper: StreamId | None = end
    while upper is not None and upper >= begin:
        count = max(1, sizer.size if fields else min(sizer.size, limit - len(matching) + 1))
        entries, lower, received = _read_back(server, streams, upper, begin, count)
        sizer.learn(len(entries), received)
        for entry in map(allowed.entry, entries):
            size = sum(len(name) + len(value) for name, value in entry.pairs)
            is_full = len(matching) == limit or (matching and taken + size > _PAGE_BYTES)
            if is_full or (searched and time.monotonic() > deadline):
                return FoundEntries(tuple(matching), searched, entry.id, too_long, too_slow, no_json)
            values = [*fields.candidates(entry.pairs)] if fields else []
            try:
                is_match, others = fields.matches(values, deadline) if fields else (True, 0)
            except TimeoutError:
                if searched:
                    return FoundEntries(tuple(matching), searched, entry.id, too_long, too_slow, no_json)
                is_match, others, too_slow = False, 0, 1  # this entry alone takes longer than a request may
            searched += 1
            no_json += others
            too_long += sum(len(value) > LONGEST for value in values) if fields and fields.json else 0
            if is_match:
                matching.append(entry)
                taken += size
        upper = lower
        if searched >= _SEARCHED or time.monotonic() > deadline:
            break
    return FoundEntries(tuple(matching), searched, upper, too_long, too_slow, no_json)


def _read_back(
    server: Server, streams: Sequence[str | bytes], upper: StreamId, begin: StreamId, count: int
) -> tuple[list[Seen], StreamId | None, int]:
    """Return (entries from `upper` back, the ID at which to continue, their bytes). An entry of one shard that is older
    than the last one that was read of another shard is left for the next call."""
    entries: list[Seen] = []
    bound = begin
    is_last, received = True, 0
    commands = [("XREVRANGE", stream, bytes(upper), bytes(begin), "COUNT", count) for stream in streams]
    for command, reply in zip(commands, server.execute_each(commands), strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command)
        received += sum(len(word) for entry, fields in reply for word in fields or ())
        if len(reply) == count:
            is_last = False
            bound = max(bound, StreamId.parse(reply[-1][0]))
        entries += entries_of(command[1], reply)
    entries = sorted((entry for entry in entries if entry.id >= bound), key=lambda entry: entry.id, reverse=True)
    return entries, (None if is_last or bound == MIN_ID else bound.previous()), received
