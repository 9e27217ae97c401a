"""P4, P23: decode the reply of XRANGE to a RecordBatch, compared with redis-py and hiredis. Without a server."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import hiredis
import pyarrow as pa
import pyarrow.json
from redis._parsers.helpers import parse_stream_list

from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.wire.entry_page import decode_entries
from tools.bench.row import Row
from tools.stopping import stop

ENTRIES = 8_000  # source.task.read_partition's largest page
SECONDS = 0.4  # of one measurement
FLIGHTS = pa.schema([("carrier", pa.string()), ("flight", pa.int32()), ("delay", pa.float64())])
TEXTS = pa.schema([(name, pa.string()) for name in FLIGHTS.names])


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def reply_of(entries: int, shapes: list[list[str]]) -> bytes:
    """Return an XRANGE reply. The field names of its entries alternate between `shapes`."""
    chance = random.Random(7)
    value: dict[str, Callable[[], str]] = {
        "carrier": lambda: chance.choice(("UA", "AA", "B6", "DL", "EV")),
        "flight": lambda: str(chance.randint(1, 8500)),
        "delay": lambda: f"{chance.uniform(-20, 200):.1f}",
    }
    parts = [b"*%d\r\n" % entries]
    milliseconds = 1_700_000_000_000
    for index in range(entries):
        names = shapes[index % len(shapes)]
        milliseconds += chance.randint(0, 3)
        parts.append(b"*2\r\n%b*%d\r\n" % (_bulk(b"%d-%d" % (milliseconds, index)), 2 * len(names)))
        parts += [_bulk(name.encode()) + _bulk(value.get(name, lambda: "x")().encode()) for name in names]
    return b"".join(parts)


def wide_reply(entries: int) -> tuple[bytes, pa.Schema]:
    """Return a reply with twenty fields of five types in each entry, and its schema."""
    chance = random.Random(8)
    kinds: list[tuple[pa.DataType, Callable[[], str]]] = [
        (pa.int64(), lambda: str(chance.randrange(10**12))),
        (pa.float64(), lambda: f"{chance.uniform(-1000, 1000):.3f}"),
        (pa.string(), lambda: f"customer {chance.randrange(97)}"),
        (
            pa.timestamp("us", tz="UTC"),
            lambda: f"2013-{chance.randint(1, 12):02d}-{chance.randint(1, 28):02d}T05:15:00Z",
        ),
        (pa.bool_(), lambda: chance.choice(("true", "false"))),
    ]
    schema = pa.schema([(f"f{index}", kinds[index % 5][0]) for index in range(20)])
    return _reply(entries, lambda: {f"f{index}": kinds[index % 5][1]() for index in range(20)}), schema


def json_reply(entries: int) -> tuple[bytes, pa.Schema]:
    """Return a reply with a JSON object of four fields, of which one is a list, in each entry, and its schema."""
    chance = random.Random(9)
    order = pa.struct(
        [("id", pa.int64()), ("who", pa.string()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))]
    )

    def fields() -> dict[str, str]:
        number = chance.randrange(10**6)
        return {
            "order": json.dumps({"id": number, "who": f"c{number % 97}", "price": number / 100, "tags": ["a", "b"]})
        }

    return _reply(entries, fields), pa.schema([("order", order)])


def large_reply(entries: int) -> tuple[bytes, pa.Schema]:
    """Return a reply with a value of 10 kB and a number in each entry, and its schema."""
    text = "".join(random.Random(10).choices("abcdefghij ", k=10_000))
    numbers = iter(range(10**9))
    return _reply(entries, lambda: {"text": text, "n": str(next(numbers))}), pa.schema(
        [("text", pa.string()), ("n", pa.int32())]
    )


def _reply(entries: int, fields: Callable[[], dict[str, str]]) -> bytes:
    parts = [b"*%d\r\n" % entries]
    for index in range(entries):
        words = [word.encode() for pair in fields().items() for word in pair]
        parts.append(b"*2\r\n%b*%d\r\n" % (_bulk(b"%d-%d" % (1_700_000_000_000 + index, index)), len(words)))
        parts += map(_bulk, words)
    return b"".join(parts)


# How a program without columns converts a value, by Arrow type.
_CASTS: dict[str, Callable[[str], object]] = {
    "int64": int, "int32": int, "double": float, "bool": lambda text: text == "true", "string": str,
    "timestamp[us, tz=UTC]": datetime.fromisoformat,
}  # fmt: skip


def _wide_row(measure: str, target: float, reply: bytes, entries: int, schema: pa.Schema) -> Row:
    """Compare with rows in Python: a tuple of the declared types for each entry."""
    names = [name.encode() for name in schema.names]
    casts: list[Callable[[str], object]] = [_CASTS.get(str(field.type), json.loads) for field in schema]
    maps = schema.names == ["_fields"]

    def peer() -> object:
        entries_of_reply = _by_redis_py(reply)
        if maps:
            return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries_of_reply]
        return [
            tuple(cast(fields[name].decode()) for name, cast in zip(names, casts, strict=True))
            for _, fields in entries_of_reply
        ]

    ran = f"{entries:,} entries, {len(reply):,} bytes of XRANGE's reply → RecordBatch; peer → ids, dicts, rows"
    return Row(
        "P23",
        measure,
        ran,
        "/s",
        target,
        lambda: _rate(_batch_of(reply, schema), entries),
        lambda: _rate(peer, entries),
        peer_name="redis-py",
    )


def wide_rows() -> list[Row]:
    """Return the rows of P23."""
    entries = 2_000
    wide, types = wide_reply(entries)
    fields = pa.schema([("_fields", pa.map_(pa.string(), pa.string()))])
    return [
        _wide_row("20 mixed fields", 8, wide, entries, types),
        _wide_row("_fields of 20", 8, wide, entries, fields),
        _wide_row("a JSON column", 6, *_with(json_reply, entries)),
        _json_reader_row(*_with(json_reply, entries)),
        _wide_row("values of 10 kB", 1, *_with(large_reply, 400)),
    ]


def _json_reader_row(reply: bytes, entries: int, schema: pa.Schema) -> Row:
    """Compare with Arrow's JSON reader alone, which finds the same objects as lines of one text, and checks nothing."""
    lines = b"\n".join(fields[b"order"] for _, fields in _by_redis_py(reply))
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    parsing = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema(list(schema.field("order").type)), unexpected_field_behavior="error"
    )

    def peer() -> object:
        return pyarrow.json.read_json(pa.BufferReader(lines), read_options=reading, parse_options=parsing)

    return Row(
        "P23",
        "a JSON column, beside Arrow's reader",
        f"{entries:,} entries, {len(reply):,} bytes of XRANGE's reply → RecordBatch; peer: their objects → table",
        "/s",
        None,
        lambda: _rate(_batch_of(reply, schema), entries),
        lambda: _rate(peer, entries),
        peer_name="Arrow's reader",
    )


def _with(make: Callable[[int], tuple[bytes, pa.Schema]], entries: int) -> tuple[bytes, int, pa.Schema]:
    reply, schema = make(entries)
    return reply, entries, schema


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


def _rate(work: Callable[[], object], entries: int) -> float:
    """Return entries per second."""
    done = 0
    begun = time.perf_counter()
    while (spent := time.perf_counter() - begun) < SECONDS:
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


def _busy_row(reply: bytes, entries: int, schema: pa.Schema) -> Row:
    """Compare both sides while the memory is busy."""

    def busy(work: Callable[[], object]) -> Callable[[], float]:
        def rate() -> float:
            with _busy_memory():
                return _rate(work, entries)

        return rate

    ran = f"{entries:,} entries as above, while another process copies 256 MB again and again"
    return Row(
        "P4", "decode with busy memory, typed", ran, "/s", 10,
        busy(_batch_of(reply, schema)), busy(lambda: _by_redis_py(reply)), peer_name="redis-py",
    )  # fmt: skip


def _fixed_row(reply: bytes, entries: int, schema: pa.Schema) -> Row:
    """Return the time of a page that is nearly empty."""
    return Row(
        "P4", f"a page of {entries}, typed", "reply → RecordBatch: the cost that every page has", "µs", 100,
        lambda: entries * 1e6 / _rate(_batch_of(reply, schema), entries), at_least=False,
    )  # fmt: skip


def _row(measure: str, reply: bytes, entries: int, schema: pa.Schema, target: float | None) -> Row:
    types = ", ".join(str(field.type) for field in schema)
    ran = f"{entries:,} entries, {len(reply):,} bytes of XRANGE's reply → RecordBatch of {types}; peer → ids, dicts"
    return Row(
        "P4", f"decode {measure}", ran, "/s", target,
        lambda: _rate(_batch_of(reply, schema), entries), lambda: _rate(lambda: _by_redis_py(reply), entries),
        peer_name="redis-py",
    )  # fmt: skip


def rows(_stack: contextlib.ExitStack) -> list[Row]:
    """All rows of the group."""
    names = FLIGHTS.names
    two = [names, ["carrier", "delay"]]
    chance = random.Random(7)
    optional = [[*names, *(f"o{i}" for i in range(6) if chance.random() < 0.5)] for _ in range(1000)]
    four = [*two, [*names, "gate"], ["flight", "carrier", "delay"]]
    return [
        _row("same-shaped, text", reply_of(ENTRIES, [names]), ENTRIES, TEXTS, 8),
        _row("same-shaped, typed", reply_of(ENTRIES, [names]), ENTRIES, FLIGHTS, 8),
        _row("two shapes in turns, typed", reply_of(ENTRIES, two), ENTRIES, FLIGHTS, 2),
        _row("four shapes in turns, typed", reply_of(ENTRIES, four), ENTRIES, FLIGHTS, 2),
        _row("64 shapes at random, typed", reply_of(ENTRIES, optional), ENTRIES, FLIGHTS, 2),
        _row("a page of 500, typed", reply_of(500, [names]), 500, FLIGHTS, None),
        _busy_row(reply_of(ENTRIES, [names]), ENTRIES, FLIGHTS),
        _fixed_row(reply_of(10, [names]), 10, FLIGHTS),
        *wide_rows(),
    ]
