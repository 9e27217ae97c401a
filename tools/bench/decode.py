"""P4, P23, P30: decode the reply of XRANGE to a RecordBatch, and Avro values, beside others. Without a server."""

from __future__ import annotations

import contextlib
import io
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import hiredis
import pyarrow as pa
from pyspark.sql import types as T
from redis._parsers.helpers import parse_stream_list

from spark_streams.connector.schemas.payload_columns import EncodeTarget, decode_array, encode_array
from spark_streams.connector.schemas.payload_format import PayloadFormat
from spark_streams.connector.schemas.schema_registry import Schema
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.wire.entry_page import decode_entries
from tools.bench.row import Row
from tools.waiting import stop

ENTRIES = 8_000  # source.task.read_partition's largest page
FLIGHTS = pa.schema([("carrier", pa.string()), ("flight", pa.int32()), ("delay", pa.float64())])
TEXTS = pa.schema([(name, pa.string()) for name in FLIGHTS.names])
_MAP = pa.schema([("_fields", pa.map_(pa.string(), pa.string()))])


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def reply_of(entries: int, fields: Callable[[random.Random, int], dict[str, str]]) -> bytes:
    """Return an XRANGE reply. fields: returns those of an entry, by its number."""
    chance = random.Random(7)
    parts = [b"*%d\r\n" % entries]
    milliseconds = 1_700_000_000_000
    for index in range(entries):
        milliseconds += chance.randint(0, 3)
        words = [word.encode() for pair in fields(chance, index).items() for word in pair]
        parts.append(b"*2\r\n%b*%d\r\n" % (_bulk(b"%d-%d" % (milliseconds, index)), len(words)))
        parts += map(_bulk, words)
    return b"".join(parts)


def flights(entries: int, *shapes: list[str]) -> bytes:
    """Return a reply whose entries have the field names of these shapes in turns."""
    values: dict[str, Callable[[random.Random], str]] = {
        "carrier": lambda chance: chance.choice(("UA", "AA", "B6", "DL", "EV")),
        "flight": lambda chance: str(chance.randint(1, 8500)),
        "delay": lambda chance: f"{chance.uniform(-20, 200):.1f}",
    }

    def fields(chance: random.Random, number: int) -> dict[str, str]:
        names = shapes[number % len(shapes)]
        return {name: values[name](chance) if name in values else "x" for name in names}

    return reply_of(entries, fields)


def wide() -> tuple[bytes, pa.Schema]:
    """Return a reply with twenty fields of five types in each entry, and its schema."""
    kinds: list[tuple[pa.DataType, Callable[[random.Random], str]]] = [
        (pa.int64(), lambda chance: str(chance.randrange(10**12))),
        (pa.float64(), lambda chance: f"{chance.uniform(-1000, 1000):.3f}"),
        (pa.string(), lambda chance: f"customer {chance.randrange(97)}"),
        (pa.timestamp("us", tz="UTC"),
         lambda chance: f"2013-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}T05:15:00Z"),
        (pa.bool_(), lambda chance: chance.choice(("true", "false"))),
    ]  # fmt: skip
    schema = pa.schema([(f"f{index}", kinds[index % 5][0]) for index in range(20)])
    return reply_of(2_000, lambda chance, _: {f"f{index}": kinds[index % 5][1](chance) for index in range(20)}), schema


def objects() -> tuple[bytes, pa.Schema]:
    """Return a reply with a JSON object of four fields, of which one is a list, in each entry, and its schema."""
    order = pa.struct(
        [("id", pa.int64()), ("who", pa.string()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))]
    )

    def fields(chance: random.Random, _: int) -> dict[str, str]:
        number = chance.randrange(10**6)
        value = {"id": number, "who": f"c{number % 97}", "price": number / 100, "tags": ["a", "b"]}
        return {"order": json.dumps(value)}

    return reply_of(2_000, fields), pa.schema([("order", order)])


def large() -> tuple[bytes, pa.Schema]:
    """Return a reply with a value of 10 kB and a number in each entry, and its schema."""
    text = "".join(random.Random(10).choices("abcdefghij ", k=10_000))
    reply = reply_of(400, lambda _, number: {"text": text, "n": str(number)})
    return reply, pa.schema([("text", pa.string()), ("n", pa.int32())])


# How a program without columns converts a value, by Arrow type.
_CASTS: dict[str, Callable[[str], object]] = {
    "int64": int, "int32": int, "double": float, "bool": lambda text: text == "true", "string": str,
    "timestamp[us, tz=UTC]": datetime.fromisoformat,
}  # fmt: skip


def _batch_of(reply: bytes, schema: pa.Schema) -> Callable[[], object]:
    """Return a function that decodes the reply to a batch with our code."""
    columns = Columns(schema, True, "PERMISSIVE")

    def work() -> object:
        page = decode_entries(memoryview(reply))
        return columns.batch(page, "s")

    return work


def _by_redis_py(reply: bytes) -> Any:
    """Decode the reply to entry IDs and dicts with redis-py."""
    reader = hiredis.Reader()
    reader.feed(reply)
    return parse_stream_list(reader.gets())  # type: ignore[no-untyped-call]


def _rows_by_redis_py(reply: bytes, schema: pa.Schema) -> Callable[[], object]:
    """Return a function that decodes the reply to rows in Python: a tuple of the declared types for each entry."""
    names = [name.encode() for name in schema.names]
    casts: list[Callable[[str], object]] = [_CASTS.get(str(field.type), json.loads) for field in schema]

    def work() -> object:
        entries = _by_redis_py(reply)
        if schema == _MAP:
            return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries]
        return [
            tuple(cast(fields[name].decode()) for name, cast in zip(names, casts, strict=True)) for _, fields in entries
        ]

    return work


def _rate(
    work: Callable[[], object], entries: int, seconds: float = 0.4, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return entries per second of a measurement that takes some seconds of the clock."""
    done = 0
    begun = clock()
    while (spent := clock() - begun) < seconds:
        work()
        done += entries
    return done / spent


# A process that streams through memory, and says so when it begins.
_STREAMING = """
import numpy
source, target = numpy.ones(1 << 28, numpy.uint8), numpy.empty(1 << 28, numpy.uint8)
print("ready", flush=True)
while True:
    target[:] = source
"""


@contextlib.contextmanager
def _busy_memory() -> Iterator[None]:
    """Let another process copy 256 MB again and again. It shares the caches and the bandwidth of the memory."""
    with subprocess.Popen([sys.executable, "-c", _STREAMING], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            stop(process)


def _decoded(measure: str, target: float | None, reply: bytes, schema: pa.Schema, entries: int = ENTRIES,
             around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext) -> Row:  # fmt: skip
    """Compare with redis-py's entries. around: what else goes on meanwhile."""

    def run(work: Callable[[], object]) -> Callable[[], float]:
        def rate() -> float:
            with around():
                return _rate(work, entries)

        return rate

    types = ", ".join(str(field.type) for field in schema)
    ran = f"{entries:,} entries, {len(reply):,} bytes of XRANGE's reply → RecordBatch of {types}; peer → ids, dicts"
    return Row("P4", f"decode {measure}", ran, "/s", target, run(_batch_of(reply, schema)),
               run(lambda: _by_redis_py(reply)), "redis-py")  # fmt: skip


def _wide(measure: str, target: float, reply: bytes, schema: pa.Schema) -> Row:
    """Compare with rows in Python."""
    entries = len(_by_redis_py(reply))
    ran = f"{entries:,} entries, {len(reply):,} bytes of XRANGE's reply → RecordBatch; peer → ids, dicts, rows"
    ours, peer = _batch_of(reply, schema), _rows_by_redis_py(reply, schema)
    return Row("P23", measure, ran, "/s", target, lambda: _rate(ours, entries), lambda: _rate(peer, entries),
               "redis-py")  # fmt: skip


def decode_rows(_stack: contextlib.ExitStack) -> list[Row]:
    """All rows of the group."""
    names = FLIGHTS.names
    two = [names, ["carrier", "delay"]]
    chance = random.Random(7)
    optional = [[*names, *(f"o{i}" for i in range(6) if chance.random() < 0.5)] for _ in range(1000)]
    same, ten = flights(ENTRIES, names), _batch_of(flights(10, names), FLIGHTS)
    fields_of_twenty, types = wide()
    return [
        _decoded("same-shaped, text", 8, same, TEXTS),
        _decoded("same-shaped, typed", 8, same, FLIGHTS),
        _decoded("two shapes in turns, typed", 2, flights(ENTRIES, *two), FLIGHTS),
        _decoded("four shapes in turns, typed", 2,
                 flights(ENTRIES, *two, [*names, "gate"], ["flight", "carrier", "delay"]), FLIGHTS),
        _decoded("64 shapes at random, typed", 2, flights(ENTRIES, *optional), FLIGHTS),
        _decoded("a page of 500, typed", None, flights(500, names), FLIGHTS, 500),
        _decoded("with busy memory, typed", 10, same, FLIGHTS, around=_busy_memory),
        Row("P4", "a page of 10, typed", "reply → RecordBatch: the cost that every page has", "µs", 100,
            lambda: 10e6 / _rate(ten, 10), at_least=False),
        _wide("20 mixed fields", 8, fields_of_twenty, types),
        _wide("_fields of 20", 8, fields_of_twenty, _MAP),
        _wide("a JSON column", 6, *objects()),
        _wide("values of 10 kB", 1, *large()),
    ]  # fmt: skip


# -- values: P30 -------------------------------------------------------------------------------------------------------


VALUES = 5_000
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


def _values_rate(work: Callable[[], object]) -> float:
    """Return values per second of this process' processor time: it does not wait, and other work counts less."""
    return _rate(work, VALUES, 0.5, time.process_time)


def values_rows(_stack: contextlib.ExitStack) -> list[Row]:
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
        Row("P30", "decode", ran, "/s", None, lambda: _values_rate(lambda: decode_array(bodies, form, _COLUMNS)),
            lambda: _values_rate(read_alone), peer_name="fastavro"),
        Row("P30", "encode", ran, "/s", None, lambda: _values_rate(lambda: encode_array(structs, target)),
            lambda: _values_rate(write_alone), peer_name="fastavro"),
    ]  # fmt: skip
