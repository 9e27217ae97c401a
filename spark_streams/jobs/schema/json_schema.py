"""A JSON Schema as columns, as far as it says what a value is. Pure: JSON in, names of types out.

    integer BIGINT · number DOUBLE · boolean BOOLEAN · string STRING, with format date-time TIMESTAMP, with date DATE
    array with items ARRAY · object with properties STRUCT · object with additionalProperties of one schema MAP

null beside another type says nothing, for every column may be null. Refused by name: what combines or refers to other
schemas (oneOf, anyOf, allOf, $ref), several types, and arrays or objects that do not say what is in them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from spark_streams.errors import ConfigError
from spark_streams.model.untyped import Json

_SIMPLE = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "string": "STRING"}
_FORMATS = {"date-time": "TIMESTAMP", "date": "DATE"}
_REMEDY = "say in [columns] what its type shall be"
_COMBINED = ("oneOf", "anyOf", "allOf", "$ref", "not", "if")


def columns(schema: Json, but: Container[str] = ()) -> dict[str, str]:
    """By the name of each property its type. but: properties that are left out. Raises ConfigError."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise ConfigError("the schema has no properties: columns are the properties of an object")
    return {name: _type(inner, name) for name, inner in schema["properties"].items() if name not in but}


def _type(schema: Json, at: str) -> str:
    """Raises ConfigError."""
    if not isinstance(schema, dict):
        raise ConfigError(f"property {at} may be anything, or nothing ({schema!r}): {_REMEDY}")
    combined = [key for key in _COMBINED if key in schema]
    if combined:
        raise ConfigError(f"property {at} is said by {combined[0]}: {_REMEDY}")
    given = schema.get("type", "string" if "enum" in schema else None)
    kinds = [kind for kind in (given if isinstance(given, list) else [given]) if kind != "null"]
    if kinds == ["string"]:
        return _FORMATS.get(str(schema.get("format")), "STRING")
    if len(kinds) == 1 and kinds[0] in _SIMPLE:
        return _SIMPLE[kinds[0]]
    if kinds == ["array"] and isinstance(schema.get("items"), dict):
        return f"ARRAY<{_type(schema['items'], at)}>"
    if kinds == ["object"]:
        return _object(schema, at)
    raise ConfigError(f"property {at} has no one type that a column can be ({given!r}): {_REMEDY}")


def _object(schema: Mapping[str, Json], at: str) -> str:
    inner = schema.get("properties")
    if inner:
        fields = [f"`{name}`: {_type(one, f'{at}.{name}')}" for name, one in inner.items()]
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"MAP<STRING, {_type(schema['additionalProperties'], at)}>"
    raise ConfigError(f"property {at} is an object that does not say what is in it: {_REMEDY}")
