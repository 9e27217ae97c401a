"""Columns as Spark's types, by a parser of our own: Spark's needs a session."""

from __future__ import annotations

import re

from pyspark.sql import types as T

_SIMPLE = {
    "BOOLEAN": T.BooleanType(), "INT": T.IntegerType(), "BIGINT": T.LongType(), "FLOAT": T.FloatType(),
    "DOUBLE": T.DoubleType(), "STRING": T.StringType(), "BINARY": T.BinaryType(), "DATE": T.DateType(),
    "TIMESTAMP": T.TimestampType(), "TIMESTAMP_NTZ": T.TimestampNTZType(),
}  # fmt: skip


def struct_of(text: str) -> T.StructType:
    """Of 'a INT, b STRUCT<c: STRING>'."""
    words = re.findall(r"\w+|[<>(),]", text.replace("`", "").replace(":", " "))
    fields = _fields(words)
    assert not words
    return fields


def _fields(words: list[str]) -> T.StructType:
    found = []
    while words and words[0] != ">":
        name, kind = words.pop(0), None
        kind = _kind(words)
        nullable = words[:2] != ["NOT", "NULL"]
        del words[: 0 if nullable else 2]
        found.append(T.StructField(name, kind, nullable))
        if words and words[0] == ",":
            words.pop(0)
    return T.StructType(found)


def _kind(words: list[str]) -> T.DataType:
    word = words.pop(0)
    if word == "DECIMAL":
        _, precision, _, scale, _ = (words.pop(0) for _ in range(5))
        return T.DecimalType(int(precision), int(scale))
    if word in _SIMPLE:
        return _SIMPLE[word]
    words.pop(0)
    kind: T.DataType
    if word == "STRUCT":
        kind = _fields(words)
    elif word == "ARRAY":
        kind = T.ArrayType(_kind(words))
    else:
        key = _kind(words)
        words.pop(0)
        kind = T.MapType(key, _kind(words))
    words.pop(0)
    return kind
