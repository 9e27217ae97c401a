"""JSON texts, validated by their JSON Schema with the package jsonschema. Numbers keep their digits as Decimal."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas.bounds import DEEPEST, MOST_DIGITS
from spark_streams.connector.schemas.json_schema.validator import JsonValidator
from spark_streams.connector.schemas.reasons import BAD_VALUE, OTHER_SCHEMA, UnreadableError
from spark_streams.connector.schemas.registry import Schema


class JsonReader:
    """Reads values that their own schema accepts: the reader's schema only names columns."""

    def __init__(self, reader: Schema | None) -> None:
        """Raise UnsupportedError if jsonschema is missing, ValueError or others if the schema is not valid."""
        if reader is not None:
            self.validator(reader)

    def reading(self, writer: Schema, indexes: tuple[int, ...]) -> Callable[[bytes], Any]:
        """Return the function that reads values of this schema. It raises UnreadableError."""
        validator = self.validator(writer)

        def read_value(body: bytes) -> Any:
            value = parse(body)
            try:
                accepted = validator.accepts(value, len(body))
            except validator.unresolved:  # $ref to what the registry does not name: nothing is fetched
                raise UnreadableError(OTHER_SCHEMA) from None
            if not accepted:
                raise UnreadableError(BAD_VALUE)
            return value

        return read_value

    def validator(self, schema: Schema) -> JsonValidator:
        """Return the validator of a schema. Raises ValueError or others if it is not valid."""
        return JsonValidator(_parsed(schema.text), ((one.name, _parsed(one.text)) for one in schema.all_references()))


def parse(body: bytes) -> Json:
    """Return the value of a JSON text in UTF-8. Raises ValueError, also for a name that occurs twice, and beyond a
    bound of bounds.py."""
    value = json.loads(
        body.decode(), parse_int=_int, parse_float=_decimal, parse_constant=_refuse, object_pairs_hook=_object
    )
    if body.count(b"[") + body.count(b"{") > DEEPEST:
        _check_depth(value)
    return value


def text_of(value: Any) -> str:
    """Return a value as a JSON text with all digits. What JSON does not have is a text: times, infinities; bytes."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{text_of(str(name))}:{text_of(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, bytes):
        return text_of({"base64": b64encode(value).decode()})
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, date | Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        value = value.isoformat() if isinstance(value, date) else str(value)
    return json.dumps(value, ensure_ascii=False)


def _parsed(text: str) -> Json:
    return json.loads(text, parse_float=Decimal)


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _int(text: str) -> int:
    return int(_bounded(text))


def _decimal(text: str) -> Decimal:
    return Decimal(_bounded(text))


def _bounded(text: str) -> str:
    if len(text) > MOST_DIGITS:
        raise ValueError("a number is too long")
    return text


def _check_depth(value: Json) -> None:
    """Raise ValueError if a value is deeper than the bound."""
    level: list[Json] = [value]
    for _ in range(DEEPEST):
        parts = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return
    raise ValueError("a value is too deep")
