"""Convert an Avro schema to columns, with the types of Spark's own Avro reader. Pure: JSON in, type names out.

    null + T     T, as every column may be null         record   STRUCT        int       INT
    int + long   BIGINT                                 map      MAP<STRING,…> long      BIGINT
    float + double  DOUBLE                              array    ARRAY         float     FLOAT
    enum, string, uuid  STRING                          bytes, fixed  BINARY, or DECIMAL by their logical type

Refused by name: other unions (Spark makes a struct of all branches) and types that contain themselves.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

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
_WITHOUT_PARTS = {"enum": "STRING", "fixed": "BINARY"}


def avro_columns(schema: Json, excluded: Container[str] = ()) -> dict[str, str]:
    """Return the SQL types of a record's fields by name. excluded: fields to leave out. Raises ConfigError."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(
            f"the schema is {_shown(schema)}, but columns are the fields of a record: name a record's file"
        )
    types, around = _AvroTypes(schema), (_full_name(schema, ""),)
    fields = [field for field in schema["fields"] if field["name"] not in excluded]
    return {field["name"]: types.of(field["type"], field["name"], around) for field in fields}


class _AvroTypes:
    """SQL types of Avro types. In all methods, path: the field, for messages; around: the records around a type, whose
    last one gives it its namespace. They raise ConfigError."""

    def __init__(self, schema: Json) -> None:
        self._named: dict[str, Json] = {}  # types with a name, which a schema may use again
        self._collect(schema, "")

    def _collect(self, schema: Json, namespace: str) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, namespace)
        elif isinstance(schema, dict):
            if schema.get("type") in ("record", "enum", "fixed"):
                full_name = _full_name(schema, namespace)
                self._named[full_name] = schema
                namespace = full_name.rpartition(".")[0]
            for field in schema.get("fields", []):
                self._collect(field.get("type"), namespace)
            for key in ("items", "values", "type"):
                self._collect(schema.get(key), namespace)

    def of(self, schema: Json, path: str, around: tuple[str, ...]) -> str:
        if isinstance(schema, list):
            return self._union(schema, path, around)
        if schema == "null":
            raise ConfigError(f"field {path} is always null: {REMEDY}")
        if isinstance(schema, str):
            return _PRIMITIVE[schema] if schema in _PRIMITIVE else self._of_name(schema, path, around)
        if not isinstance(schema, dict):
            raise ConfigError(f"field {path}: {_shown(schema)} is not an Avro type: {REMEDY}")
        kind, logical = schema.get("type"), schema.get("logicalType")
        if not isinstance(kind, str):
            return self.of(kind, path, around)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _decimal(int(schema["precision"]), int(schema.get("scale", 0)), path)
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        if kind == "record":
            return self._record(schema, path, around)
        if kind == "array":
            return f"ARRAY<{self.of(schema['items'], path, around)}>"
        if kind == "map":
            return f"MAP<STRING, {self.of(schema['values'], path, around)}>"
        return _WITHOUT_PARTS[kind] if kind in _WITHOUT_PARTS else self.of(kind, path, around)

    def _union(self, branches: list[Json], path: str, around: tuple[str, ...]) -> str:
        non_null = [branch for branch in branches if branch != "null"]
        if len(non_null) == 1:
            return self.of(non_null[0], path, around)
        kinds = frozenset(branch if isinstance(branch, str) else "" for branch in non_null)
        if len(non_null) == 2 and kinds in _WIDER:
            return _WIDER[kinds]
        raise ConfigError(f"field {path} is a union of {_shown(branches)}, which no single type can hold: {REMEDY}")

    def _of_name(self, name: str, path: str, around: tuple[str, ...]) -> str:
        namespace = around[-1].rpartition(".")[0]
        within = f"{namespace}.{name}"
        full_name = within if namespace and "." not in name and within in self._named else name
        if full_name in around:
            raise ConfigError(f"field {path}: type {full_name} contains itself, which no column can: {REMEDY}")
        if full_name not in self._named:
            raise ConfigError(f"field {path}: type {name!r} is neither Avro's nor defined in this file: {REMEDY}")
        return self.of(self._named[full_name], path, around)

    def _record(self, schema: Mapping[str, Json], path: str, around: tuple[str, ...]) -> str:
        full_name = _full_name(schema, around[-1].rpartition(".")[0])
        if full_name in around:
            raise ConfigError(f"field {path}: type {full_name} contains itself, which no column can: {REMEDY}")
        fields = [
            f"`{name}`: {self.of(inner, f'{path}.{name}', (*around, full_name))}"
            for name, inner in ((field["name"], field["type"]) for field in schema["fields"])
        ]
        return f"STRUCT<{', '.join(fields)}>"


def _decimal(precision: int, scale: int, path: str) -> str:
    if precision > _MOST_DIGITS:
        raise ConfigError(
            f"field {path} is a decimal of {precision} digits, and Spark's have {_MOST_DIGITS} at most: {REMEDY}"
        )
    return f"DECIMAL({precision}, {scale})"


def _full_name(schema: Mapping[str, Json], namespace: str) -> str:
    name = str(schema["name"])
    inner = schema.get("namespace", namespace)
    return name if "." in name or not inner else f"{inner}.{name}"


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
