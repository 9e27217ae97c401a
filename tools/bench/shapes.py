"""P32: entries of other shapes through the job `etl`: read, judged by a rule, written as Parquet.

The figure is megabytes of the entries' fields a second, by the job's log: from its second batch to its last, so without
what is cold. The peer is the same job with three short fields, the shape of all other rows.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import io
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro

from tools.bench.row import Row
from tools.bench.servers import Running, request, running

_BYTES = 200_000_000  # of all fields of a shape …
_MOST = 2_000_000  # … but no more entries
_BATCHES = 6
_PAGE = 2_000_000  # bytes of requests that are sent together
_KINDS = ("INT", "STRING", "DOUBLE", "BOOLEAN", "TIMESTAMP")
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "customer", "type": "string"}, {"name": "amount", "type": "double"},
        {"name": "note", "type": "string"},
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Entries of one shape."""

    name: str
    columns: Mapping[str, str]  # of the job
    samples: Sequence[Mapping[str, Any]]  # fields of entries, which are added in turns
    rule: str  # SQL that holds for no row
    streams: int = 1
    decode: Mapping[str, str] = field(default_factory=dict)  # the job's [decode]

    @functools.cached_property
    def size(self) -> float:
        """Mean bytes of an entry's values and names."""
        return statistics.mean(sum(len(_bytes(part)) for pair in one.items() for part in pair) for one in self.samples)

    @functools.cached_property
    def count(self) -> int:
        """Number of entries."""
        return min(_MOST, round(_BYTES / self.size))


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _short(number: int) -> dict[str, Any]:
    return {"carrier": ("UA", "AA", "B6", "DL", "EV")[number % 5], "flight": number * 7919 % 8500, "delay": number / 10}


def _wide(fields: int, number: int) -> dict[str, Any]:
    made = (number * 31, f"text {number}", number / 7, "true", f"2026-01-01T00:00:{number % 60:02d}Z")
    return {f"f{place}": made[place % len(_KINDS)] for place in range(fields)}


def _json(number: int) -> dict[str, Any]:
    items = [{"sku": f"s{number}-{place}", "price": place + number / 100, "tags": ["a", "b"]} for place in range(36)]
    return {"order": json.dumps({"id": number, "customer": f"c{number}", "items": items})}


def _avro(number: int) -> dict[str, Any]:
    out = io.BytesIO()
    value = {"id": number, "customer": f"c{number}", "amount": number / 100, "note": "n" * 40}
    fastavro.schemaless_writer(out, fastavro.parse_schema(_AVRO), value)
    return {"payload": b"\0\0\0\0\1" + out.getvalue()}


def _blob(size: int, number: int) -> dict[str, Any]:
    return {"n": number, "value": random.Random(number).randbytes(size // 2).hex()}


def _shapes(registry: str, folder: Path) -> Iterator[Shape]:
    schema = folder / "order.avsc"
    schema.write_text(json.dumps(_AVRO))
    short = [_short(number) for number in range(500)]
    base = {"carrier": "STRING", "flight": "INT", "delay": "DOUBLE"}
    yield Shape("three short fields", base, short, "flight < 0")
    for fields in (5, 20, 100):
        columns = {f"f{place}": _KINDS[place % len(_KINDS)] for place in range(fields)}
        yield Shape(f"{fields} fields", columns, [_wide(fields, number) for number in range(100)], "f0 < 0")
    items = (
        "STRUCT<id: BIGINT, customer: STRING, items: ARRAY<STRUCT<sku: STRING, price: DOUBLE, tags: ARRAY<STRING>>>>"
    )
    yield Shape("a JSON field of 2 kB", {"order": items}, [_json(number) for number in range(100)], "order.id < 0")
    decode = {"field": "payload", "registry": registry, "schema": str(schema)}
    yield Shape("Avro with a registry", {}, [_avro(number) for number in range(500)], "id < 0", decode=decode)
    for size in (100, 1_000, 10_000, 100_000, 1_000_000):
        samples = [_blob(size, number) for number in range(max(2, min(100, 2_000_000 // size)))]
        yield Shape(f"values of {size:,} B", {"n": "INT", "value": "STRING"}, samples, "n < 0")
    for streams in (100, 1_000, 10_000):
        yield Shape(f"{streams:,} streams, three short fields", base, short, "flight < 0", streams)


class _Registry(BaseHTTPRequestHandler):
    """A schema registry with one schema, whose ID is 1."""

    def do_GET(self) -> None:
        """Answer any request with it."""
        body = json.dumps({"schema": json.dumps(_AVRO)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def megabytes(server: Running, folder: Path, shape: Shape) -> float:
    """Run the job over the entries of a shape, and return megabytes a second."""
    _fill(server, shape)
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    limit = -(-shape.count // _BATCHES)
    source = {"group": "g", "startingOffsets": "earliest", "maxEntriesPerTrigger": limit}
    settings = {
        "url": server.url,
        "source": source | ({"streams": "s:0"} if shape.streams == 1 else {"streamsPattern": "s:*"}),
        "table": {"format": "parquet", "path": f"{out}/table"},
        "dead_letters": {"stream": "dead"},
        "job": {"checkpoint": f"{out}/checkpoint", "trigger": "available-now", "log": f"{out}/log"},
        "spark": {"master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "3g"},
        "rule": [{"reason": "never", "when": shape.rule}],
        **({"decode": shape.decode} if shape.decode else {"columns": shape.columns}),
    }
    config = out / "etl.toml"
    config.write_text("\n".join(f"{name} = {_toml(value)}" for name, value in settings.items()))
    command = [sys.executable, "-m", "spark_streams.cli", "run", "etl", "--config", str(config)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{shape.name}: the job failed:\n{run.stderr[-2000:]}")
    lines = [json.loads(line) for line in (out / "log").read_text().splitlines()]
    batches = [line for line in lines if line["event"] == "progress" and line["rows"]]
    if (read := sum(batch["rows"] for batch in batches)) != shape.count:
        raise RuntimeError(f"{shape.name}: {read} of {shape.count} entries were read")
    began, last = (datetime.datetime.fromisoformat(batches[place]["began"]) for place in (1, -1))
    seconds = (last - began).total_seconds() + batches[-1]["batch_ms"] / 1000
    return float(sum(batch["rows"] for batch in batches[1:]) / seconds * shape.size / 1e6)


def _toml(value: object) -> str:
    """Return a value as TOML: JSON, but for tables."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(name)} = {_toml(one)}' for name, one in value.items())}}}"
    return json.dumps(value)


def _fill(server: Running, shape: Shape) -> None:
    """Let the server have the entries of this shape alone, and no trace of a run."""
    with server.client() as client:
        if client.call("GET", "shape") == shape.name.encode():
            for number in range(shape.streams):
                client.call("XGROUP", "DESTROY", f"s:{number}", "g")
            for key in client.call("KEYS", "rstream:*"):
                client.call("DEL", key)
            return
        client.call("FLUSHALL")
        client.call("SET", "shape", shape.name)
        bodies = [[part for pair in one.items() for part in pair] for one in shape.samples]
        page, waiting = bytearray(), 0
        for number in range(shape.count):
            page += request("XADD", f"s:{number % shape.streams}", "*", *bodies[number % len(bodies)])
            waiting += 1
            if len(page) > _PAGE or number + 1 == shape.count:
                client.send(bytes(page), waiting)
                page, waiting = bytearray(), 0


def shapes_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return a row for each shape."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    registry = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), _Registry))
    threading.Thread(target=registry.serve_forever, daemon=True).start()
    stack.callback(registry.shutdown)
    base, *others = _shapes(f"http://127.0.0.1:{registry.server_port}", folder)
    server = stack.enter_context(running("redis-server"))
    peer = functools.partial(megabytes, server, folder, base)
    ran = "etl with a rule into Parquet, available-now; MB of fields a second"
    return [
        Row("P32", shape.name, f"{ran}: {shape.count:,} entries of {shape.size:,.0f} B", "MB/s", 1 / 3,
            functools.partial(megabytes, server, folder, shape), peer, base.name)
        for shape in others
    ]  # fmt: skip
