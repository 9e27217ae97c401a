"""Dead letters as lines of JSON.

    {"id": "1732097-0", "envelope": {"stream": "orders", "reason": "decode", …}, "fields": {"amount": "n/a", …}}

A text that is not UTF-8 (a name or a value) is written as {"base64": "…"}. If a name is not UTF-8 or occurs twice,
`fields` is a list of [name, value] instead of an object. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from spark_streams.base.printable import json_text
from spark_streams.connector.deadletter.envelope import raw
from spark_streams.connector.deadletter.transform import DeadLetter


def as_json(dead_letter: DeadLetter) -> dict[str, object]:
    """Return the JSON object of one dead letter."""
    return {
        "id": dead_letter.id,
        "envelope": {name: text_as_json(value) for name, value in dead_letter.envelope.items()},
        "fields": fields_as_json(dead_letter.pairs),
    }


def fields_as_json(pairs: Sequence[tuple[str, str]]) -> dict[str, object] | list[list[object]]:
    """Return `fields` of any entry. pairs: (name, value), bytes that are not UTF-8 as surrogate escapes."""
    shown = [(text_as_json(name), text_as_json(value)) for name, value in pairs]
    names = [name for name, _ in shown if isinstance(name, str)]
    plain = len(names) == len(shown) == len(set(names))
    return {str(name): value for name, value in shown} if plain else [list(pair) for pair in shown]


def as_line(dead_letter: DeadLetter) -> str:
    """Return the JSON object as one line, without a line end."""
    return json_text(as_json(dead_letter), separators=(",", ":"))


def text_as_json(value: str) -> str | dict[str, str]:
    """Return a text as JSON. value: bytes that are not UTF-8 as surrogate escapes."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(raw(value)).decode()}
    return value
