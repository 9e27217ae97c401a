"""A walk over the bytes of an Avro value by its writer's schema, before fastavro reads them.

fastavro trusts the bytes: it calls itself as deep as they say, makes as many items as they announce, and takes a
negative index from the end of a list. What the walk lets pass is a value of the schema within the bounds of reasons.py.

    int, long               varints of at most 5 and 10 bytes, within 32 and 64 bits     boolean         0 or 1
    enum, union             a number that one of their symbols or branches has           fixed, floats   their size
    string, bytes           a length that is not negative, and so many bytes; UTF-8 is left to fastavro
    array, map              blocks of items, the last one empty. A negative count precedes the block's size in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas.reasons import BAD_VALUE, DEEPEST, STEPS_OF_A_BYTE, StepBudget, UnreadableError

Walk = Callable[[bytes, int, int], int]  # takes (body, place, depth), returns the place behind the value
Match = Callable[[bytes, int], re.Match[bytes] | None]
_Part = tuple[Match | None, Walk | None]  # a pattern, and the walk of what follows it; None: it is _sized

_LONG = rb"(?:[\x80-\xff]{0,8}[\0-\x7f]|[\x80-\xff]{9}[\0\1])"
# Types whose bytes a pattern can match. Those that follow each other in a record are one pattern.
_PATTERNS = {
    "null": b"",
    "boolean": rb"[\0\1]",
    "int": rb"(?:[\x80-\xff]{0,3}[\0-\x7f]|[\x80-\xff]{4}[\0-\x0f])",
    "long": _LONG,
    "float": b".{4}",
    "double": b".{8}",
}
_SIZED, _RECORDS = ("bytes", "string"), ("record", "error")
_long = re.compile(_LONG, re.DOTALL).match


class AvroWalk:
    def __init__(self, schema: Json, named: Mapping[str, Json], read_fields: Mapping[str, int]) -> None:
        """schema, named: as `avro.parsed` returns them; read_fields: how many fields the reader's record of a name has.

        Raises KeyError or others if the schema is not valid.
        """
        self._named, self._read_fields = named, read_fields
        self._walks: dict[str, Walk] = {}  # of named types
        self._steps = StepBudget()
        self._takes_steps = False
        self._walk = self._of(schema)

    def end_of(self, body: bytes) -> int:
        """Return the number of bytes of the value with which these bytes begin. Raises UnreadableError."""
        if self._takes_steps:
            self._steps.begin(STEPS_OF_A_BYTE * len(body))
        try:
            return self._walk(body, 0, 0)
        except IndexError:  # the bytes end before the value
            raise UnreadableError(BAD_VALUE) from None

    def _of(self, schema: Json) -> Walk:
        schema = bare_schema(schema)
        if isinstance(schema, list):
            return _union([self._of(branch) for branch in schema])
        kind, pattern = kind_of(schema), _pattern(schema)
        if pattern is not None:
            return _matching(pattern)
        if kind in _SIZED:
            return _sized
        if kind == "enum":
            return _union([_nothing] * len(schema["symbols"]))
        if kind == "array":
            self._takes_steps = True
            return _blocks(self._of(schema["items"]), 1, self._steps)
        if kind == "map":
            self._takes_steps = True
            return _blocks(_record(self._parts(["string", schema["values"]]), 0, self._steps), 0, self._steps)
        return self._record(schema) if kind in _RECORDS else self._of_name(kind)

    def _of_name(self, name: str) -> Walk:
        if name not in self._walks:

            def later(body: bytes, at: int, depth: int) -> int:
                return self._walks[name](body, at, depth)

            self._walks[name] = later  # for a type that contains itself, which meets its name before its walk is made
            self._walks[name] = self._of(self._named[name])
        return self._walks[name]

    def _record(self, schema: Mapping[str, Json]) -> Walk:
        kinds = [bare_schema(field["type"]) for field in schema["fields"]]
        steps = sum(_pattern(kind) == b"" or kind_of(kind) in (*_RECORDS, *self._named) for kind in kinds)
        steps += max(0, self._read_fields.get(last_part(schema["name"]), 0) - len(kinds))
        self._takes_steps |= steps > 0
        return _record(self._parts(kinds), steps, self._steps)

    def _parts(self, kinds: Iterable[Json]) -> list[_Part]:
        """Return as few parts as possible for values that follow each other."""
        parts: list[_Part] = []
        run = b""
        for kind in map(bare_schema, kinds):
            pattern = _pattern(kind)
            if pattern is None:
                parts.append((_match(run), None if kind_of(kind) in _SIZED else self._of(kind)))
                run = b""
            else:
                run += pattern
        return [*parts, (_match(run), _nothing)] if run else parts


def read_fields(named: Mapping[str, Json]) -> dict[str, int]:
    """Return how many fields the record of a name, or of an alias, is read with. Names are without their namespace."""
    found: dict[str, int] = {}
    for schema in named.values():
        for name in (schema["name"], *schema.get("aliases", ())):
            found[last_part(name)] = max(found.get(last_part(name), 0), len(schema.get("fields", ())))
    return found


def last_part(name: str) -> str:
    return name.rpartition(".")[2]


def bare_schema(schema: Json) -> Json:
    """Return a schema without the objects that only wrap a type."""
    while isinstance(schema, dict) and not isinstance(schema["type"], str):
        schema = schema["type"]
    return schema


def kind_of(schema: Json) -> str:
    """Return the name of a bare type, empty for a union."""
    return str(schema["type"]) if isinstance(schema, dict) else schema if isinstance(schema, str) else ""


def _pattern(schema: Json) -> bytes | None:
    """Return the pattern of a bare type, None if it needs a function."""
    kind = kind_of(schema)
    if kind == "fixed":
        return b".{%d}" % schema["size"] if schema["size"] else b""
    if kind == "enum" and 0 < len(schema["symbols"]) <= 64:  # the index has one byte, or more than it needs
        count = len(schema["symbols"])
        return b"(?:%b|%b%b)" % (_numbers(0, count), _numbers(0x80, count), rb"\x80{0,3}\0")
    return _PATTERNS.get(kind)


def _numbers(begin: int, count: int) -> bytes:
    """Return the pattern of every second byte: as zigzag writes numbers that are not negative."""
    return b"[%b]" % b"".join(b"\\x%02x" % (begin + 2 * index) for index in range(count))


def _match(pattern: bytes) -> Match | None:
    return re.compile(pattern, re.DOTALL).match if pattern else None


def _number(body: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place, as it is before zigzag: odd if it is negative. And the place behind it."""
    found = _long(body, at)
    if found is None:
        raise UnreadableError(BAD_VALUE)
    number = 0
    for byte in reversed(found[0]):
        number = number << 7 | byte & 0x7F
    return number, found.end()


def _nothing(_body: bytes, at: int, _depth: int) -> int:
    return at


def _matching(pattern: bytes) -> Walk:
    match = re.compile(pattern, re.DOTALL).match

    def walk(body: bytes, at: int, _depth: int) -> int:
        found = match(body, at)
        if found is None:
            raise UnreadableError(BAD_VALUE)
        return found.end()

    return walk if pattern else _nothing


def _sized(body: bytes, at: int, _depth: int) -> int:
    number = body[at]
    at += 1
    if number > 0x7F:
        number, at = _number(body, at - 1)
    at += number >> 1
    if number & 1 or at > len(body):
        raise UnreadableError(BAD_VALUE)
    return at


def _union(branches: list[Walk]) -> Walk:
    by_number = {2 * index: branch for index, branch in enumerate(branches)}

    def walk(body: bytes, at: int, depth: int) -> int:
        number = body[at]
        at += 1
        if number > 0x7F:
            number, at = _number(body, at - 1)
        branch = by_number.get(number)
        if branch is None:
            raise UnreadableError(BAD_VALUE)
        return branch(body, at, depth)

    return walk


def _record(parts: list[_Part], steps_of_one: int, steps: StepBudget) -> Walk:
    """steps_of_one: what a record takes for fields that may have no bytes."""

    def walk(body: bytes, at: int, depth: int) -> int:
        if depth >= DEEPEST:
            raise UnreadableError(BAD_VALUE)
        if steps_of_one:
            steps.take(steps_of_one)
        for match, inner in parts:
            if match is not None:
                found = match(body, at)
                if found is None:
                    raise UnreadableError(BAD_VALUE)
                at = found.end()
            if inner is not None:
                at = inner(body, at, depth + 1)
                continue
            number = body[at]  # as in _sized, without a call: most fields are here
            at += 1
            if number > 0x7F:
                number, at = _number(body, at - 1)
            at += number >> 1
            if number & 1 or at > len(body):
                raise UnreadableError(BAD_VALUE)
        return at

    return walk


def _blocks(item: Walk, levels: int, steps: StepBudget) -> Walk:
    """levels: of depth; those of a map are its entries'."""

    def walk(body: bytes, at: int, depth: int) -> int:
        if depth >= DEEPEST:
            raise UnreadableError(BAD_VALUE)
        inner = depth + levels
        while True:
            number, at = _number(body, at)
            if number == 0:
                return at
            end = None
            if number & 1:
                size, at = _number(body, at)
                end = at + (size >> 1)
                if size & 1:
                    raise UnreadableError(BAD_VALUE)
            for _ in range((number + 1) >> 1):
                begin = at
                at = item(body, at, inner)
                if at == begin:
                    steps.take()
            if end is not None and at != end:
                raise UnreadableError(BAD_VALUE)

    return walk
