"""JSON texts, validated by their JSON Schema with the package jsonschema. Numbers keep their digits as Decimal."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

from spark_streams.model.untyped import Json
from spark_streams.schemas.reasons import BAD_VALUE, OTHER_SCHEMA, UnreadableError, library
from spark_streams.schemas.registry import Schema


class JsonReader:
    """Reads values that their own schema accepts: the reader's schema only names columns."""

    def __init__(self, reader: Schema | None) -> None:
        """Raise UnsupportedError if jsonschema is missing, ValueError or others if the schema is not valid."""
        self._validators, self._referencing = library("jsonschema.validators"), library("referencing")
        self._dialects, self.unresolved = library("referencing.jsonschema"), self._referencing.exceptions.Unresolvable
        if reader is not None:
            self.validator(reader)

    def reading(self, writer: Schema, indexes: tuple[int, ...]) -> Callable[[bytes], Any]:
        """Return the function that reads values of this schema. It raises UnreadableError."""
        validator, unresolved = self.validator(writer), self.unresolved

        def read_value(body: bytes) -> Any:
            value = parse(body)
            try:
                accepted = validator.is_valid(value)
            except unresolved:  # $ref to what the registry does not name: nothing is fetched
                raise UnreadableError(OTHER_SCHEMA) from None
            if not accepted:
                raise UnreadableError(BAD_VALUE)
            return value

        return read_value

    def validator(self, schema: Schema) -> Any:
        """Return the validator of a schema. Raises ValueError or others if it is not valid."""
        content, drafts = _parsed(schema.text), self._validators
        kind = drafts.validator_for(content, default=drafts.Draft7Validator)
        kind.check_schema(content)
        checker = kind.TYPE_CHECKER.redefine("integer", _is_integer).redefine("number", _is_number)
        of = self._dialects.specification_with(kind.META_SCHEMA.get("$schema", "").rstrip("#"))
        resources = [(one.name, of.create_resource(_parsed(one.text))) for one in schema.all_references()]
        registry = self._referencing.Registry().with_resources(resources)
        return drafts.extend(kind, type_checker=checker)(content, registry=registry)


def parse(body: bytes) -> Json:
    """Return the value of a JSON text in UTF-8. Raises ValueError, also for a name that occurs twice."""
    return json.loads(body.decode(), parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_object)


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


def _is_number(_: object, value: Json) -> bool:
    return type(value) in (int, Decimal)


def _is_integer(_: object, value: Json) -> bool:
    return type(value) is int or (type(value) is Decimal and value.adjusted() < 400 and value % 1 == 0)
