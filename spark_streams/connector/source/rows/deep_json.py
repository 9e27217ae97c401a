"""Read JSON of any depth, without recursion.

Python's own reader is much faster, and fails at a depth that depends on its caller and version. Arrow reads any depth
in fields that are not declared. So a text for which Python's reader fails is read here, with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from spark_streams.base.untyped import Json

_BLANKS = frozenset(" \t\n\r")
_SPACE = re.compile(r"[ \t\n\r]*")
_CLOSING = {"[": "]", "{": "}"}


def decode_deep(text: str, decode_at: Callable[[str, int], tuple[Json, int]]) -> Json:
    """Return the value: objects as tuples of pairs, arrays as lists. decode_at: json.JSONDecoder.raw_decode, for values
    that are not nested. Raises ValueError."""
    unclosed: list[tuple[str, list[Json]]] = []  # bracket, and the values so far
    names: list[str] = []  # of the fields whose values are not complete
    place = _skip_space(text, 0)
    while True:
        value: Any
        bracket = text[place : place + 1]
        if bracket in _CLOSING:
            inner = _skip_space(text, place + 1)
            if text[inner : inner + 1] != _CLOSING[bracket]:
                unclosed.append((bracket, []))
                place = inner if bracket == "[" else _read_name(text, inner, names, decode_at)
                continue
            value, place = [] if bracket == "[" else (), inner + 1
        else:
            value, place = decode_at(text, place)
        while True:
            place = _skip_space(text, place)
            if not unclosed:
                if place < len(text):
                    raise ValueError("more than one value")
                return value
            bracket, values = unclosed[-1]
            values.append(value if bracket == "[" else (names.pop(), value))
            mark = text[place : place + 1]
            place = _skip_space(text, place + 1)
            if mark == ",":
                place = place if bracket == "[" else _read_name(text, place, names, decode_at)
                break
            if mark != _CLOSING[bracket]:
                raise ValueError("no comma")
            unclosed.pop()
            value = values if bracket == "[" else tuple(values)


def _read_name(text: str, place: int, names: list[str], decode_at: Callable[[str, int], tuple[Json, int]]) -> int:
    """Add the name of a field; return the place of its value."""
    if text[place : place + 1] != '"':
        raise ValueError("no name")
    name, place = decode_at(text, place)
    place = _skip_space(text, place)
    if text[place : place + 1] != ":":
        raise ValueError("no colon")
    names.append(name)
    return _skip_space(text, place + 1)


def _skip_space(text: str, place: int) -> int:
    if text[place : place + 1] not in _BLANKS:
        return place
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing, too
