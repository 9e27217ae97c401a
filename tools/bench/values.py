"""P30: decode and encode Avro values of ten fields, compared with fastavro alone. Without a server.

Both sides use this process' processor time: it does not wait, and other work on the machine counts less.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import types as T

from spark_streams.connector.schemas.payload_columns import EncodeTarget, decode_array, encode_array
from spark_streams.connector.schemas.payload_format import PayloadFormat
from spark_streams.connector.schemas.schema_registry import Schema
from spark_streams.connector.spark.arrow import arrow_schema
from tools.bench.row import Row

VALUES = 5_000
SECONDS = 0.5  # of one measurement
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
_TIME = {"type": "long", "logicalType": "timestamp-micros"}
_STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
# Name, Avro type and Spark type of each field.
_FIELDS: list[tuple[str, Any, T.DataType]] = [
    ("id", "long", T.LongType()), ("who", "string", T.StringType()), ("amount", _DECIMAL, T.DecimalType(12, 2)),
    ("at", _TIME, T.TimestampType()), ("day", {"type": "int", "logicalType": "date"}, T.DateType()),
    ("state", _STATE, T.StringType()), ("note", ["null", "string"], T.StringType()), ("n", "int", T.IntegerType()),
    ("weight", "double", T.DoubleType()), ("paid", "boolean", T.BooleanType()),
]  # fmt: skip
_COLUMNS = T.StructType([T.StructField(name, kind) for name, _, kind in _FIELDS])
_SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind, _ in _FIELDS]}


def _values() -> list[dict[str, Any]]:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        {
            "id": n, "who": f"customer {n % 97}", "amount": Decimal(n).scaleb(-2), "at": begin + timedelta(seconds=n),
            "day": date(2026, 1, 1 + n % 28), "state": "PAID" if n % 2 else "NEW", "note": None if n % 3 else "x",
            "n": n % 1000, "weight": n / 7, "paid": n % 2 == 0,
        }
        for n in range(VALUES)
    ]  # fmt: skip


def _rate(work: Callable[[], object]) -> float:
    """Return values per second of processor time."""
    done, begun = 0, time.process_time()
    while (spent := time.process_time() - begun) < SECONDS:
        work()
        done += VALUES
    return done / spent


def rows(_stack: contextlib.ExitStack) -> list[Row]:
    """All rows of the group."""
    values, parsed = _values(), fastavro.parse_schema(_SCHEMA)
    structs = pa.array(values, pa.struct(list(arrow_schema(_COLUMNS))))
    target, form = EncodeTarget("avro", Schema(json.dumps(_SCHEMA))), PayloadFormat("avro", json.dumps(_SCHEMA))
    bodies = encode_array(structs, target).field("value")
    payloads = bodies.to_pylist()

    def write_alone() -> None:
        for value in values:
            fastavro.schemaless_writer(io.BytesIO(), parsed, value)

    def read_alone() -> None:
        for payload in payloads:
            fastavro.schemaless_reader(io.BytesIO(payload), parsed, None)

    ran = f"{VALUES:,} Avro values of ten fields, in Arrow arrays; peer: Python values in a loop"
    return [
        Row("P30", "decode", ran, "/s", None, lambda: _rate(lambda: decode_array(bodies, form, _COLUMNS)),
            lambda: _rate(read_alone), peer_name="fastavro"),
        Row("P30", "encode", ran, "/s", None, lambda: _rate(lambda: encode_array(structs, target)),
            lambda: _rate(write_alone), peer_name="fastavro"),
    ]  # fmt: skip
