"""P4: reply bytes of XRANGE to a RecordBatch, beside what redis-py and hiredis make of the same bytes. No server."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

import hiredis
import pyarrow as pa
from redis._parsers.helpers import parse_stream_list

from spark_streams.source.rows.columns import Columns
from spark_streams.wire.entries.decode import decode_entries
from tests.bench.row import Row

ENTRIES = 8_000  # source.task.read_partition's largest page
SECONDS = 0.4  # a measure runs so long
FLIGHTS = pa.schema([("carrier", pa.string()), ("flight", pa.int32()), ("delay", pa.float64())])
TEXTS = pa.schema([(name, pa.string()) for name in FLIGHTS.names])


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def reply_of(entries: int, shapes: list[list[str]]) -> bytes:
    """An XRANGE reply whose entries take turns between these field names."""
    chance = random.Random(7)
    value: dict[str, Callable[[], str]] = {
        "carrier": lambda: chance.choice(("UA", "AA", "B6", "DL", "EV")),
        "flight": lambda: str(chance.randint(1, 8500)),
        "delay": lambda: f"{chance.uniform(-20, 200):.1f}",
    }
    parts = [b"*%d\r\n" % entries]
    milliseconds = 1_700_000_000_000
    for at in range(entries):
        names = shapes[at % len(shapes)]
        milliseconds += chance.randint(0, 3)
        parts.append(b"*2\r\n%b*%d\r\n" % (_bulk(b"%d-%d" % (milliseconds, at)), 2 * len(names)))
        parts += [_bulk(name.encode()) + _bulk(value.get(name, lambda: "x")().encode()) for name in names]
    return b"".join(parts)


def _rate(work: Callable[[], object], entries: int) -> float:
    """Entries per second."""
    done = 0
    begun = time.perf_counter()
    while (spent := time.perf_counter() - begun) < SECONDS:
        work()
        done += entries
    return done / spent


def _row(what: str, reply: bytes, entries: int, schema: pa.Schema, target: float | None) -> Row:
    columns = Columns(schema, True, "PERMISSIVE")

    def ours() -> object:
        page = decode_entries(memoryview(reply))
        return columns.batch(page, page.count, "s")

    def peer() -> object:
        reader = hiredis.Reader()
        reader.feed(reply)
        return parse_stream_list(reader.gets())  # type: ignore[no-untyped-call]

    types = ", ".join(str(field.type) for field in schema)
    ran = f"{entries:,} entries, {len(reply):,} bytes of XRANGE's reply → RecordBatch of {types}; peer → ids, dicts"
    return Row(
        "P4", f"decode {what}", ran, "/s", target,
        lambda: _rate(ours, entries), lambda: _rate(peer, entries), peer_name="redis-py",
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
        _row("a page of 10, typed", reply_of(10, [names]), 10, FLIGHTS, None),
    ]
