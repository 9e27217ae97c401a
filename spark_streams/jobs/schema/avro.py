"""An Avro schema as columns: the types that Spark's own reader of Avro gives them. Pure: JSON in, names of types out.

    null + T     T, as every column may be null         record   STRUCT        int       INT
    int + long   BIGINT                                 map      MAP<STRING,…> long      BIGINT
    float + double  DOUBLE                              array    ARRAY         float     FLOAT
    enum, string, uuid  STRING                          bytes, fixed  BINARY, or DECIMAL by their logical type

Refused by name: other unions (Spark makes a struct of guesses of them) and types that contain themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from spark_streams.errors import ConfigError
from spark_streams.model.untyped import Json

_PRIMITIVE = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
_REMEDY = "say in [columns] what its type shall be"
# By the type and its logical type; of others the type alone counts, as Avro wants it.
_LOGICAL: dict[tuple[str, Json], str] = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
}
_WIDER = {frozenset({"int", "long"}): "BIGINT", frozenset({"float", "double"}): "DOUBLE"}
Names = Mapping[str, Json]  # types that have a name, by it: they may be used again


def columns(schema: Json, but: Container[str] = ()) -> dict[str, str]:
    """By the name of each field of a record its type. but: fields that are left out. Raises ConfigError."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(f"the schema is no record but {_shown(schema)}: columns are the fields of a record")
    known: dict[str, Json] = {}
    _learn(schema, "", known)
    return {
        field["name"]: _type(field["type"], field["name"], known, (_full(schema, ""),), _space(schema, ""))
        for field in schema["fields"]
        if field["name"] not in but
    }


def _type(schema: Json, at: str, known: Names, within: tuple[str, ...], space: str) -> str:
    """at: the field, for messages; within: the named types around it; space: the namespace. Raises ConfigError."""
    if isinstance(schema, list):
        return _union(schema, at, known, within, space)
    if schema == "null":
        raise ConfigError(f"field {at} is null and nothing else: {_REMEDY}")
    if isinstance(schema, str):
        return _PRIMITIVE[schema] if schema in _PRIMITIVE else _named(schema, at, known, within, space)
    if not isinstance(schema, dict):
        raise ConfigError(f"field {at}: {_shown(schema)} is no Avro type")
    kind, logical = schema.get("type"), schema.get("logicalType")
    if not isinstance(kind, str):
        return _type(kind, at, known, within, space)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return f"DECIMAL({int(schema['precision'])}, {int(schema.get('scale', 0))})"
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    build = _BUILT.get(kind)
    if build is not None:
        return build(schema, at, known, within, space)
    return _type(kind, at, known, within, space)


def _union(branches: list[Json], at: str, known: Names, within: tuple[str, ...], space: str) -> str:
    some = [branch for branch in branches if branch != "null"]
    if len(some) == 1:
        return _type(some[0], at, known, within, space)
    kinds = frozenset(branch if isinstance(branch, str) else "" for branch in some)
    if len(some) == 2 and kinds in _WIDER:
        return _WIDER[kinds]
    raise ConfigError(f"field {at} is a union of {_shown(branches)}, which no one type holds: {_REMEDY}")


def _named(name: str, at: str, known: Names, within: tuple[str, ...], space: str) -> str:
    full = name if "." in name or not space or f"{space}.{name}" not in known else f"{space}.{name}"
    if full in within:
        raise ConfigError(f"field {at}: type {full} contains itself, which no column can: {_REMEDY}")
    if full not in known:
        raise ConfigError(f"field {at}: type {name!r} is neither Avro's nor defined in this file")
    return _type(known[full], at, known, within, space)


def _record(schema: Mapping[str, Json], at: str, known: Names, within: tuple[str, ...], space: str) -> str:
    full, below = _full(schema, space), _space(schema, space)
    if full in within:
        raise ConfigError(f"field {at}: type {full} contains itself, which no column can: {_REMEDY}")
    fields = [
        f"`{name}`: {_type(inner, f'{at}.{name}', known, (*within, full), below)}"
        for name, inner in ((field["name"], field["type"]) for field in schema["fields"])
    ]
    return f"STRUCT<{', '.join(fields)}>"


def _array(schema: Mapping[str, Json], at: str, known: Names, within: tuple[str, ...], space: str) -> str:
    return f"ARRAY<{_type(schema['items'], at, known, within, space)}>"


def _map(schema: Mapping[str, Json], at: str, known: Names, within: tuple[str, ...], space: str) -> str:
    return f"MAP<STRING, {_type(schema['values'], at, known, within, space)}>"


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


def _learn(schema: Json, space: str, known: dict[str, Json]) -> None:
    """The types that have a name, and those within them."""
    if isinstance(schema, list):
        for branch in schema:
            _learn(branch, space, known)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "enum", "fixed"):
            known[_full(schema, space)] = schema
            space = _space(schema, space)
        for field in schema.get("fields", []):
            _learn(field.get("type"), space, known)
        for key in ("items", "values", "type"):
            _learn(schema.get(key), space, known)


def _full(schema: Mapping[str, Json], space: str) -> str:
    name = str(schema["name"])
    inner = schema.get("namespace", space)
    return name if "." in name or not inner else f"{inner}.{name}"


def _space(schema: Mapping[str, Json], space: str) -> str:
    """The namespace of what stands within."""
    return _full(schema, space).rpartition(".")[0]


def _shown(schema: Json) -> str:
    if isinstance(schema, list):
        return ", ".join(_shown(one) for one in schema)
    return str(schema.get("name", schema.get("type"))) if isinstance(schema, dict) else str(schema)
