"""The database's table: its columns by type, values for them, and its rows as Python's values."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAME = "public.things"
KEYS = 400
_TEXTS = ("", "O'Brien", "ü😀", "null", "default", "1.10", '{"a": 1}', "\\", "a\nb", "~/-", " ")
_ABSENT = 0.1  # of the values
_LARGE = 0.15  # of the values of a column that may be large: PostgreSQL stores them apart


@dataclass(frozen=True)
class Column:
    """sql, spark, arrow: its types; value: the SQL of a random value; large: of one that is stored apart; shown: the
    SQL that makes it JSON, as a format with its name; read: the value that JSON stands for."""

    sql: str
    spark: str
    arrow: pa.DataType
    value: Callable[[random.Random], str]
    large: str | None = None
    shown: str = "{}"
    read: Callable[[Any], Any] = lambda value: value


def _text(chance: random.Random) -> str:
    return "'{}'".format(chance.choice([*_TEXTS, str(chance.random())]).replace("'", "''"))


def _micros(chance: random.Random) -> str:
    return f"TIMESTAMP '1970-01-01' + {chance.randrange(-(10**9), 6 * 10**9)} * INTERVAL '1.000001 second'"


def _json(chance: random.Random) -> str:
    return f"""'{{"a": {chance.randrange(10**17)}, "b": [1.10, null, "\\"ü"]}}'"""


def _many(text: str, count: int) -> str:
    return f"(SELECT array_agg({text}) FROM generate_series(1, {count}) AS n)"


def _number(digits: int, scale: int) -> Callable[[random.Random], str]:
    return lambda chance: str(Decimal(chance.randrange(-(10**digits) + 1, 10**digits)).scaleb(-scale))


def _json_text(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _single(text: str) -> float:
    return struct.unpack("f", struct.pack("f", float(text)))[0]


_LONG = "repeat(md5({seed}), 80)"
COLUMNS = {
    "name": Column("TEXT", "STRING", pa.string(), _text, _LONG),
    "credit": Column(
        "NUMERIC(10, 2)", "DECIMAL(10,2)", pa.decimal128(10, 2), _number(10, 2), shown="{}::text", read=Decimal
    ),
    "wide": Column(
        "NUMERIC", "DECIMAL(38,12)", pa.decimal128(38, 12), lambda chance: _number(20, chance.randrange(13))(chance),
        shown="{}::text", read=Decimal,
    ),
    "flag": Column("BOOLEAN", "BOOLEAN", pa.bool_(), lambda chance: chance.choice(["true", "false"])),
    "small": Column("SMALLINT", "SMALLINT", pa.int16(), lambda chance: str(chance.randrange(-99, 9999))),
    # A text of the table: all digits must be there.
    "big": Column("BIGINT", "STRING", pa.string(), lambda chance: str(chance.randrange(2**63)), shown="{}::text"),
    "ratio": Column(
        "DOUBLE PRECISION", "DOUBLE", pa.float64(),
        lambda chance: chance.choice([repr(chance.random() * 10**20), "1.10", "'NaN'", "'-Infinity'", "5e-324"]),
        shown="{}::text", read=float,
    ),
    "thin": Column(
        "REAL", "FLOAT", pa.float32(), lambda chance: repr(chance.random()), shown="{}::text", read=_single
    ),
    "day": Column(
        "DATE", "DATE", pa.date32(), lambda chance: f"DATE '1970-01-01' + {chance.randrange(-99_999, 99_999)}",
        shown="{}::text", read=date.fromisoformat,
    ),
    "at": Column(
        "TIMESTAMP(6)", "TIMESTAMP_NTZ", pa.timestamp("us"), _micros, shown="{}::text", read=datetime.fromisoformat
    ),
    "at_ms": Column(
        "TIMESTAMP(3)", "TIMESTAMP_NTZ", pa.timestamp("us"), _micros, shown="{}::text", read=datetime.fromisoformat
    ),
    "zoned": Column(
        "TIMESTAMPTZ", "TIMESTAMP", pa.timestamp("us", tz="UTC"), _micros, shown="{}::text",
        read=lambda text: datetime.fromisoformat(text).astimezone(UTC),
    ),
    "data": Column(
        "BYTEA", "BINARY", pa.binary(), lambda chance: f"'\\x{chance.randbytes(chance.randrange(9)).hex()}'",
        "decode(repeat(md5({seed}), 200), 'hex')", "encode({}, 'hex')", bytes.fromhex,
    ),
    "tags": Column(
        "TEXT[]", "ARRAY<STRING>", pa.list_(pa.string()), lambda chance: f"ARRAY[{_text(chance)}, NULL, 'b']",
        _many("md5({seed} || n)", 70),
    ),
    "numbers": Column(
        "INT[]", "ARRAY<INT>", pa.list_(pa.int32()), lambda chance: f"ARRAY[{chance.randrange(2**31)}, -1]",
        _many("{seed}::int + n::int", 600),
    ),
    # Not large: Debezium 3.6.1 writes null for one that has not changed, because it cannot convert its placeholder.
    "prices": Column(
        "NUMERIC(10, 2)[]", "ARRAY<DECIMAL(10,2)>", pa.list_(pa.decimal128(10, 2)),
        lambda chance: f"ARRAY[{_number(10, 2)(chance)}, 1.1]",
        shown="{}::text[]", read=lambda values: [Decimal(value) for value in values],
    ),
    "uuids": Column(
        "UUID[]", "ARRAY<STRING>", pa.list_(pa.string()), lambda chance: f"ARRAY[md5('{chance.random()}')::uuid]",
        _many("md5({seed} || n)::uuid", 140),
    ),
    "doc": Column(
        "JSONB", "STRING", pa.string(), _json, f"jsonb_build_object('long', {_LONG}, 'n', 1.10)", "{}::text", _json_text
    ),
    "attrs": Column(
        "HSTORE", "STRING", pa.string(), lambda chance: f"hstore(ARRAY['a', {_text(chance)}, 'b', NULL])",
        f"hstore('long', {_LONG})", "hstore_to_jsonb({})::text", _json_text,
    ),
    "gone": Column("TEXT", "STRING", pa.string(), _text),
    "note": Column("TEXT", "STRING", pa.string(), _text),
}  # fmt: skip
ADDED, DROPPED = "note", "gone"
LAST = [name for name in COLUMNS if name != DROPPED]  # that the table has in the end


def creation() -> str:
    """Return the SQL that makes the table."""
    columns = [f"{name} {column.sql}" for name, column in COLUMNS.items() if name != ADDED]
    apart = [f"ALTER COLUMN {name} SET STORAGE EXTERNAL" for name, column in COLUMNS.items() if column.large]
    return (
        "CREATE EXTENSION hstore;\n"
        f"CREATE TABLE {NAME} (id BIGINT PRIMARY KEY, {', '.join(columns)});\n"
        f"ALTER TABLE {NAME} {', '.join(apart)};\n"
    )


def value_of(column: Column, chance: random.Random) -> str:
    """Return the SQL of a random value."""
    if chance.random() < _ABSENT:
        return "NULL"
    if column.large and chance.random() < _LARGE:
        return column.large.format(seed=f"'{chance.randrange(10**6)}'")
    return column.value(chance)


def reading() -> str:
    """Return the SQL for all rows, each an object in a line."""
    members = [f"'{name}', {COLUMNS[name].shown.format(name)}" for name in LAST]
    return f"SELECT jsonb_build_object('id', id, {', '.join(members)})::text FROM {NAME}"


def rows_of(lines: str) -> dict[int, dict[str, Any]]:
    """Return the rows by key, from what `reading` returns."""
    rows = map(json.loads, lines.splitlines())
    return {
        row["id"]: {name: comparable(None if row[name] is None else COLUMNS[name].read(row[name])) for name in LAST}
        for row in rows
    }


def rows_of_delta(path: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a Delta table by key."""
    from deltalake import DeltaTable, QueryBuilder

    names = ", ".join(["id", *LAST])
    found = QueryBuilder().register("things", DeltaTable(path)).execute(f"SELECT {names} FROM things")
    return {
        row["id"]: {name: comparable(_of_delta(name, row[name])) for name in LAST}
        for row in pa.table(found.read_all()).to_pylist()
    }


def _of_delta(name: str, value: Any) -> Any:
    return COLUMNS[name].read(value) if COLUMNS[name].read is _json_text and value is not None else value


def comparable(value: Any) -> Any:
    """Return a float as a text, because NaN equals nothing."""
    return repr(value) if isinstance(value, float) else value
