"""P28, P29: write and ordered read of eight shards, compared with one stream, on one server and on three masters."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from itertools import count

from pyspark.sql import DataFrame

from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect
from tools.bench.row import Row
from tools.bench.servers import running
from tools.bench.sink import KEEP, ROWS, frame, write_rate
from tools.bench.spark import source, steady_rate
from tools.servers.cluster import running_cluster

_SHARDS = 8
_SHARDED = {"shards": str(_SHARDS), "shardBy": "f"}
_BATCH, _STEADY = 250_000, 1_000_000
_groups = count()


def write(url: str, rows: DataFrame, count: int, stream: str, **options: str) -> float:
    """Return rows per second of `df.write` to a new stream, exactly once, with all of Spark's work."""
    names = shards_of(stream, _SHARDS) if "shards" in options else (stream,)
    with connect(Address.parse(url)) as server:
        for key in (*names, f"rstream:shards:{{{stream}}}"):
            server.execute("DEL", key)
    return write_rate(url, rows, count, stream, names, **options)


def drain(url: str, stream: str) -> float:
    """Return entries per second of Spark, one task for each stream, from the second batch to the end."""
    options = {"group": f"g{next(_groups)}", "ordered": "true", "maxEntriesPerTrigger": _BATCH}
    return steady_rate(source(url, "f STRING, g STRING", streams=stream, **options), _BATCH + _STEADY)


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The servers run while the stack is open."""

    @functools.cache
    def url(place: str) -> str:
        """Start the server, or the masters, and write once."""
        if place == "one server":
            url = stack.enter_context(running("redis-server")).url
        else:  # without a failover during a measurement
            url = stack.enter_context(running_cluster("--cluster-node-timeout", "15000")).url
        write(url, frame(ROWS), ROWS, "one", maxlen=str(KEEP))
        return url

    @functools.cache
    def loaded(place: str) -> str:
        """Write the streams that are read, and read them once, for the JVM."""
        count = _BATCH + _STEADY
        rows = frame(ROWS).limit(count).cache()
        write(url(place), rows, count, "in")
        write(url(place), rows, count, "in-shards", **_SHARDED)
        for stream in ("in", "in-shards"):
            drain(url(place), stream)
        return url(place)

    def sink(place: str, stream: str, **options: str) -> Callable[[], float]:
        return lambda: write(url(place), frame(ROWS), ROWS, stream, maxlen=str(KEEP), **options)

    def read(place: str, stream: str) -> Callable[[], float]:
        return lambda: drain(loaded(place), stream)

    written = (f"df.write of {ROWS:,} rows of 2 columns, as many keys, local[2], exactly once, maxlen ~ {KEEP:,}; "
               "the same to one stream")  # fmt: skip
    ran = (f"ordered, local[2], noop, {_STEADY:,} entries in batches of {_BATCH:,}, after a first batch; the same of "
           "one stream")  # fmt: skip
    return [
        row
        for place in ("one server", "three masters")
        for row in (
            Row("P28", f"eight shards, written, {place}", written, "/s", 0.8, sink(place, "s", **_SHARDED),
                sink(place, "one"), "one stream"),
            Row("P29", f"eight shards, read in order, {place}", ran, "/s", 1.0, read(place, "in-shards"),
                read(place, "in"), "one stream"),
        )
    ]  # fmt: skip
