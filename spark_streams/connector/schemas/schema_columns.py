"""Convert an Avro schema to columns, with the types of Spark's own Avro reader. Pure: JSON in, type names out.

    null + T     T, as every column may be null         record   STRUCT        int       INT
    int + long   BIGINT                                 map      MAP<STRING,…> long      BIGINT
    float + double  DOUBLE                              array    ARRAY         float     FLOAT
    enum, string, uuid  STRING                          bytes, fixed  BINARY, or DECIMAL by their logical type

Refused by name: other unions (Spark makes a struct of all branches) and types that contain themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.spark.running_pyspark import quoted

_PRIMITIVE = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
REMEDY = "set its type in [columns]"
_MOST_DIGITS = 38  # of Spark's DECIMAL
# By type and logical type. Avro ignores other logical types.
_LOGICAL: dict[tuple[str, Json], str] = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
}
_WIDER = {frozenset({"int", "long"}): "BIGINT", frozenset({"float", "double"}): "DOUBLE"}
Names = Mapping[str, Json]  # named types, which a schema may use again


def avro_columns(schema: Json, excluded: Container[str] = ()) -> dict[str, str]:
    """Return the SQL types of a record's fields by name. excluded: fields to leave out. Raises ConfigError."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(
            f"the schema is {_shown(schema)}, but columns are the fields of a record: name a record's file"
        )
    named_types: dict[str, Json] = {}
    _collect_named_types(schema, "", named_types)
    return {
        field["name"]: _avro_type(
            field["type"], field["name"], named_types, (_full_name(schema, ""),), _inner_namespace(schema, "")
        )
        for field in schema["fields"]
        if field["name"] not in excluded
    }


def _avro_type(schema: Json, path: str, named_types: Names, enclosing: tuple[str, ...], namespace: str) -> str:
    """Return the SQL type of a schema. Raises ConfigError.

    path: the field, for messages; enclosing: the named types around it.
    """
    if isinstance(schema, list):
        return _union(schema, path, named_types, enclosing, namespace)
    if schema == "null":
        raise ConfigError(f"field {path} is always null: {REMEDY}")
    if isinstance(schema, str):
        return _PRIMITIVE[schema] if schema in _PRIMITIVE else _named(schema, path, named_types, enclosing, namespace)
    if not isinstance(schema, dict):
        raise ConfigError(f"field {path}: {_shown(schema)} is not an Avro type: {REMEDY}")
    kind, logical = schema.get("type"), schema.get("logicalType")
    if not isinstance(kind, str):
        return _avro_type(kind, path, named_types, enclosing, namespace)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(int(schema["precision"]), int(schema.get("scale", 0)), path)
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    build = _BUILT.get(kind)
    if build is not None:
        return build(schema, path, named_types, enclosing, namespace)
    return _avro_type(kind, path, named_types, enclosing, namespace)


def _decimal(precision: int, scale: int, path: str) -> str:
    if precision > _MOST_DIGITS:
        raise ConfigError(
            f"field {path} is a decimal of {precision} digits, and Spark's have {_MOST_DIGITS} at most: {REMEDY}"
        )
    return f"DECIMAL({precision}, {scale})"


def _union(branches: list[Json], path: str, named_types: Names, enclosing: tuple[str, ...], namespace: str) -> str:
    non_null = [branch for branch in branches if branch != "null"]
    if len(non_null) == 1:
        return _avro_type(non_null[0], path, named_types, enclosing, namespace)
    kinds = frozenset(branch if isinstance(branch, str) else "" for branch in non_null)
    if len(non_null) == 2 and kinds in _WIDER:
        return _WIDER[kinds]
    raise ConfigError(f"field {path} is a union of {_shown(branches)}, which no single type can hold: {REMEDY}")


def _named(name: str, path: str, named_types: Names, enclosing: tuple[str, ...], namespace: str) -> str:
    full_name = (
        name if "." in name or not namespace or f"{namespace}.{name}" not in named_types else f"{namespace}.{name}"
    )
    if full_name in enclosing:
        raise ConfigError(f"field {path}: type {full_name} contains itself, which no column can: {REMEDY}")
    if full_name not in named_types:
        raise ConfigError(f"field {path}: type {name!r} is neither Avro's nor defined in this file: {REMEDY}")
    return _avro_type(named_types[full_name], path, named_types, enclosing, namespace)


def _record(
    schema: Mapping[str, Json], path: str, named_types: Names, enclosing: tuple[str, ...], namespace: str
) -> str:
    full_name, inner_namespace = _full_name(schema, namespace), _inner_namespace(schema, namespace)
    if full_name in enclosing:
        raise ConfigError(f"field {path}: type {full_name} contains itself, which no column can: {REMEDY}")
    fields = [
        f"`{name}`: {_avro_type(inner, f'{path}.{name}', named_types, (*enclosing, full_name), inner_namespace)}"
        for name, inner in ((field["name"], field["type"]) for field in schema["fields"])
    ]
    return f"STRUCT<{', '.join(fields)}>"


def _array(
    schema: Mapping[str, Json], path: str, named_types: Names, enclosing: tuple[str, ...], namespace: str
) -> str:
    return f"ARRAY<{_avro_type(schema['items'], path, named_types, enclosing, namespace)}>"


def _map(schema: Mapping[str, Json], path: str, named_types: Names, enclosing: tuple[str, ...], namespace: str) -> str:
    return f"MAP<STRING, {_avro_type(schema['values'], path, named_types, enclosing, namespace)}>"


def _enum(*_: object) -> str:
    return "STRING"


def _fixed(*_: object) -> str:
    return "BINARY"


_BUILT: dict[str, Callable[..., str]] = {
    "record": _record,
    "array": _array,
    "map": _map,
    "enum": _enum,
    "fixed": _fixed,
}


def _collect_named_types(schema: Json, namespace: str, named_types: dict[str, Json]) -> None:
    """Collect the named types of a schema, including nested ones."""
    if isinstance(schema, list):
        for branch in schema:
            _collect_named_types(branch, namespace, named_types)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "enum", "fixed"):
            named_types[_full_name(schema, namespace)] = schema
            namespace = _inner_namespace(schema, namespace)
        for field in schema.get("fields", []):
            _collect_named_types(field.get("type"), namespace, named_types)
        for key in ("items", "values", "type"):
            _collect_named_types(schema.get(key), namespace, named_types)


def _full_name(schema: Mapping[str, Json], namespace: str) -> str:
    name = str(schema["name"])
    inner = schema.get("namespace", namespace)
    return name if "." in name or not inner else f"{inner}.{name}"


def _inner_namespace(schema: Mapping[str, Json], namespace: str) -> str:
    """Return the namespace of the types within this one."""
    return _full_name(schema, namespace).rpartition(".")[0]


def _shown(schema: Json) -> str:
    if isinstance(schema, list):
        return ", ".join(_shown(branch) for branch in schema)
    return str(schema.get("name", schema.get("type"))) if isinstance(schema, dict) else str(schema)


# -- columns of a JSON Schema, if it defines the type of each property -------------------------------------------------

#     integer BIGINT · number DOUBLE · boolean BOOLEAN · string STRING, with format date-time TIMESTAMP, with date DATE
#     array with items ARRAY · object with properties STRUCT · object with additionalProperties of one schema MAP
#
# null beside another type is ignored, because every column may be null. Refused by name: schemas that combine or refer
# to others (oneOf, anyOf, allOf, $ref), several types, and arrays or objects that do not define their content.

_SIMPLE = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "string": "STRING"}
_FORMATS = {"date-time": "TIMESTAMP", "date": "DATE"}
_COMBINED = ("oneOf", "anyOf", "allOf", "$ref", "not", "if")


def json_columns(schema: Json, excluded: Container[str] = ()) -> dict[str, str]:
    """Return the SQL types of the properties by name. excluded: properties to leave out. Raises ConfigError."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise ConfigError("the schema has no properties, which become columns: name the schema of an object")
    return {name: _json_type(inner, name) for name, inner in schema["properties"].items() if name not in excluded}


def _json_type(schema: Json, path: str) -> str:
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
        return f"ARRAY<{_json_type(schema['items'], path)}>"
    if kinds == ["object"]:
        return _object(schema, path)
    raise ConfigError(f"property {path} has no single type for a column ({declared_type!r}): {REMEDY}")


def _object(schema: Mapping[str, Json], path: str) -> str:
    inner = schema.get("properties")
    if inner:
        fields = [
            f"{quoted(name)}: {_json_type(property_schema, f'{path}.{name}')}"
            for name, property_schema in inner.items()
        ]
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"MAP<STRING, {_json_type(schema['additionalProperties'], path)}>"
    raise ConfigError(f"property {path} is an object that does not define its content: {REMEDY}")
