"""Convert a JSON Schema to columns, if it defines the type of each property. Pure: JSON in, type names out.

    integer BIGINT · number DOUBLE · boolean BOOLEAN · string STRING, with format date-time TIMESTAMP, with date DATE
    array with items ARRAY · object with properties STRUCT · object with additionalProperties of one schema MAP

null beside another type is ignored, because every column may be null. Refused by name: schemas that combine or refer to
others (oneOf, anyOf, allOf, $ref), several types, and arrays or objects that do not define their content.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.spark.running_pyspark import quoted

_SIMPLE = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "string": "STRING"}
_FORMATS = {"date-time": "TIMESTAMP", "date": "DATE"}
REMEDY = "set its type in [columns]"
_COMBINED = ("oneOf", "anyOf", "allOf", "$ref", "not", "if")


def columns(schema: Json, excluded: Container[str] = ()) -> dict[str, str]:
    """Return the SQL types of the properties by name. excluded: properties to leave out. Raises ConfigError."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise ConfigError("the schema has no properties, which become columns: name the schema of an object")
    return {name: _type(inner, name) for name, inner in schema["properties"].items() if name not in excluded}


def _type(schema: Json, path: str) -> str:
    """Return the SQL type of a property. Raises ConfigError."""
    if not isinstance(schema, dict):
        raise ConfigError(f"property {path} has no type ({schema!r}): {REMEDY}")
    combined = [key for key in _COMBINED if key in schema]
    if combined:
        raise ConfigError(f"property {path} is defined by {combined[0]}: {REMEDY}")
    declared_type = schema.get("type", "string" if "enum" in schema else None)
    kinds = [kind for kind in (declared_type if isinstance(declared_type, list) else [declared_type]) if kind != "null"]
    if kinds == ["string"]:
        return _FORMATS.get(str(schema.get("format")), "STRING")
    if len(kinds) == 1 and kinds[0] in _SIMPLE:
        return _SIMPLE[kinds[0]]
    if kinds == ["array"] and isinstance(schema.get("items"), dict):
        return f"ARRAY<{_type(schema['items'], path)}>"
    if kinds == ["object"]:
        return _object(schema, path)
    raise ConfigError(f"property {path} has no single type for a column ({declared_type!r}): {REMEDY}")


def _object(schema: Mapping[str, Json], path: str) -> str:
    inner = schema.get("properties")
    if inner:
        fields = [
            f"{quoted(name)}: {_type(property_schema, f'{path}.{name}')}" for name, property_schema in inner.items()
        ]
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"MAP<STRING, {_type(schema['additionalProperties'], path)}>"
    raise ConfigError(f"property {path} is an object that does not define its content: {REMEDY}")
