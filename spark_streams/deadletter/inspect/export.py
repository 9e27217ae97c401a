"""A dead letter as a line of JSON.

    {"id": "1732097-0", "envelope": {"stream": "orders", "reason": "decode", …}, "fields": {"amount": "n/a", …}}

A text that is no UTF-8 (a name or a value) is written as {"base64": "…"}. Where a name is no UTF-8, or comes twice,
`fields` is a list of [name, value] instead of an object. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from spark_streams.deadletter.envelope import raw
from spark_streams.deadletter.transform import DeadLetter
from spark_streams.model.printable import json_text


def as_json(dead_letter: DeadLetter) -> dict[str, object]:
    """The object of one dead letter."""
    return {
        "id": dead_letter.id,
        "envelope": {name: _value(value) for name, value in dead_letter.envelope.items()},
        "fields": fields_as_json(dead_letter.pairs),
    }


def fields_as_json(pairs: Sequence[tuple[str, str]]) -> dict[str, object] | list[list[object]]:
    """`fields` of any entry. pairs: (name, value), bytes that are no UTF-8 as surrogate escapes."""
    told = [(_value(name), _value(value)) for name, value in pairs]
    names = [name for name, _ in told if isinstance(name, str)]
    plain = len(names) == len(told) == len(set(names))
    return {str(name): value for name, value in told} if plain else [list(pair) for pair in told]


def as_line(dead_letter: DeadLetter) -> str:
    """The same as text, without a line end in it."""
    return json_text(as_json(dead_letter), separators=(",", ":"))


def _value(value: str) -> str | dict[str, str]:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(raw(value)).decode()}
    return value
