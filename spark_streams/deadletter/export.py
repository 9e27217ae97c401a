"""A dead letter as a line of JSON.

    {"id": "1732097-0", "envelope": {"stream": "orders", "reason": "decode", …}, "fields": {"amount": "n/a", …}}

A text that is no UTF-8 (a name or a value) is written as {"base64": "…"}. Where a name is no UTF-8, or comes twice,
`fields` is a list of [name, value] instead of an object. Pure.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from spark_streams.deadletter.envelope import raw
from spark_streams.deadletter.transform import DeadLetter


def as_json(dead_letter: DeadLetter) -> dict[str, Any]:
    """The object of one dead letter."""
    pairs = [(_value(name), _value(value)) for name, value in dead_letter.pairs]
    names = [name for name, _ in pairs if isinstance(name, str)]
    plain = len(names) == len(pairs) == len(set(names))
    return {
        "id": dead_letter.id,
        "envelope": {name: _value(value) for name, value in dead_letter.envelope.items()},
        "fields": {str(name): value for name, value in pairs} if plain else [list(pair) for pair in pairs],
    }


def as_line(dead_letter: DeadLetter) -> str:
    """The same as text, without a line end in it."""
    return json.dumps(as_json(dead_letter), ensure_ascii=False, separators=(",", ":"))


def _value(value: str) -> str | dict[str, str]:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(raw(value)).decode()}
    return value
