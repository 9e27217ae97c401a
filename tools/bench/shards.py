"""P28, P29: write and ordered read of eight shards, compared with one stream, on one server and on three masters."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from itertools import count
from time import perf_counter

from pyspark.sql import DataFrame

from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from tools.bench.row import Row
from tools.bench.servers import running
from tools.bench.sink import ROWS, frame
from tools.bench.spark import session, steady_rate
from tools.servers.cluster import running_cluster

_SHARDS = 8
_SHARDED = {"shards": str(_SHARDS), "shardBy": "f"}
_KEEP = 100_000
_BATCH, _STEADY = 250_000, 1_000_000
_groups = count()


def write(url: str, rows: DataFrame, stream: str, expected: int, **options: str) -> float:
    """Return rows per second of `df.write`, exactly once, with all of Spark's work."""
    names = shards_of(stream, _SHARDS) if "shards" in options else (stream,)
    _empty(url, [*names, f"rstream:shards:{{{stream}}}"])
    begun = perf_counter()
    rows.write.format("rstream").mode("append").options(url=url, stream=stream, **options).save()
    rate = expected / (perf_counter() - begun)
    with connect(Address.parse(url)) as server:
        replies = [server.execute("XINFO", "STREAM", name) for name in names]
    added = [dict(zip(reply[0::2], reply[1::2], strict=True))[b"entries-added"] for reply in replies]
    assert sum(added) == expected, "not all rows were written"
    return rate


def drain(url: str, stream: str) -> float:
    """Return entries per second of Spark, one task for each stream, from the second batch to the end."""
    options = {"url": url, "streams": stream, "group": f"g{next(_groups)}", "startingOffsets": "earliest"}
    reader = session().readStream.format("rstream").schema("f STRING, g STRING").options(**options)
    rows = reader.option("ordered", True).option("maxEntriesPerTrigger", _BATCH).load()
    return steady_rate(rows, _BATCH + _STEADY)


def _empty(url: str, keys: Iterable[str]) -> None:
    with connect(Address.parse(url)) as server:
        for key in keys:
            server.execute("DEL", key)


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The servers run while the stack is open."""

    @functools.cache
    def one_server() -> str:
        return f"redis://127.0.0.1:{stack.enter_context(running('redis-server')).port}/0"

    @functools.cache
    def masters() -> str:
        return stack.enter_context(
            running_cluster("--cluster-node-timeout", "15000")
        ).url  # no failover during a measurement

    @functools.cache
    def warm(url: str) -> str:
        write(url, frame(ROWS), "one", ROWS, maxlen=str(_KEEP))
        return url

    def sink(url: Callable[[], str], stream: str, **options: str) -> Callable[[], float]:
        return lambda: write(warm(url()), frame(ROWS), stream, ROWS, maxlen=str(_KEEP), **options)

    @functools.cache
    def loaded(url: str) -> str:
        rows = frame(ROWS).limit(_BATCH + _STEADY).cache()
        write(url, rows, "in", rows.count())
        write(url, rows, "in-shards", rows.count(), **_SHARDED)
        for stream in ("in", "in-shards"):
            drain(url, stream)  # warm-up of the JVM, not measured
        return url

    def source(url: Callable[[], str], stream: str) -> Callable[[], float]:
        return lambda: drain(loaded(url()), stream)

    measures = []
    for place, url in (("one server", one_server), ("three masters", masters)):
        measures += [
            Row("P28", f"eight shards, written, {place}", f"df.write of {ROWS:,} rows of 2 columns, as many keys, "
                f"local[2], exactly once, maxlen ~ {_KEEP:,}; the same to one stream", "/s", 0.8,
                sink(url, "s", **_SHARDED), sink(url, "one"), "one stream"),
            Row("P29", f"eight shards, read in order, {place}", f"ordered, local[2], noop, {_STEADY:,} entries in "
                f"batches of {_BATCH:,}, after a first batch; the same of one stream", "/s", 1.0,
                source(url, "in-shards"), source(url, "in"), "one stream"),
        ]  # fmt: skip
    return measures
