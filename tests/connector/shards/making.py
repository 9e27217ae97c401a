"""Rows with keys, written into shards as Spark would, and what is there then."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.sink.chunks import Destination
from spark_streams.connector.wire.connect import connect
from tests.connector.shards.rule import shard_of
from tests.connector.sink.writing import options
from tools.servers.server import Server

Row = tuple[str | None, int]  # key, number


def sharded(url: str, count: int = 4, **given: str) -> SinkOptions:
    """The sink's options, and the shards."""
    checked = options(url, stream="orders", shards=str(count), shardBy="key", **given)
    with connect(checked.address) as server:
        Destination.from_options(checked).make_ready(server)
    return checked


def frame(rows: Sequence[Row]) -> pa.RecordBatch:
    """Columns key and n."""
    keys, numbers = [key for key, _ in rows], [n for _, n in rows]
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string()), "n": pa.array(numbers, pa.int64())})


def sequence(count: int, keys: int) -> list[Row]:
    """Keys in turns; of each the numbers rise."""
    return [(f"k{n % keys}", n) for n in range(count)]


def shards_there(server: Server, stream: str = "orders", count: int = 4) -> dict[str, list[Row]]:
    """What each shard has, in stream order; every key is in the shard that the rule says."""
    found: dict[str, list[Row]] = {}
    with server.client(decode_responses=True) as client:
        for name in shards_of(stream, count):
            found[name] = [(fields.get("key"), int(fields["n"])) for _, fields in client.xrange(name)]
            wanted = {key: shard_of(stream, key or "", count) for key, _ in found[name]}
            assert set(wanted.values()) <= {name}, wanted
    return found


def by_key(shards: dict[str, list[Row]]) -> dict[str | None, list[int]]:
    """Of each key its numbers, in the order of its shard."""
    found: dict[str | None, list[int]] = {}
    for rows in shards.values():
        for key, n in rows:
            found.setdefault(key, []).append(n)
    return found
