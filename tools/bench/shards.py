"""P28, P29: eight shards by key beside one stream, written and read in order, on one server and on three masters."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from itertools import count
from time import perf_counter

from pyspark.sql import DataFrame

from spark_streams.shards.names import shards_of
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect
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
    """Rows per second of `df.write`, exactly once, all of Spark's work included."""
    names = shards_of(stream, _SHARDS) if "shards" in options else (stream,)
    _empty(url, [*names, f"rstream:shards:{{{stream}}}"])
    begun = perf_counter()
    rows.write.format("rstream").mode("append").options(url=url, stream=stream, **options).save()
    rate = expected / (perf_counter() - begun)
    with connect(Address.parse(url)) as server:
        told = [server.execute("XINFO", "STREAM", name) for name in names]
    added = [dict(zip(one[0::2], one[1::2], strict=True))[b"entries-added"] for one in told]
    assert sum(added) == expected, "not all rows were written"
    return rate


def drain(url: str, stream: str) -> float:
    """Entries per second of Spark, each stream in one task, from the second batch to the end."""
    given = {"url": url, "streams": stream, "group": f"g{next(_groups)}", "startingOffsets": "earliest"}
    reader = session().readStream.format("rstream").schema("f STRING, g STRING").options(**given)
    made = reader.option("ordered", True).option("maxEntriesPerTrigger", _BATCH).load()
    return steady_rate(made, _BATCH + _STEADY)


def _empty(url: str, keys: Iterable[str]) -> None:
    with connect(Address.parse(url)) as server:
        for key in keys:
            server.execute("DEL", key)


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """All rows of the group; the servers run as long as the stack is open."""

    @functools.cache
    def one_server() -> str:
        return f"redis://127.0.0.1:{stack.enter_context(running('redis-server')).port}/0"

    @functools.cache
    def masters() -> str:
        return stack.enter_context(running_cluster("--cluster-node-timeout", "15000")).url  # no failover amid a measure

    @functools.cache
    def warm(url: str) -> str:
        write(url, frame(ROWS), "one", ROWS, maxlen=str(_KEEP))
        return url

    def sink(where: Callable[[], str], stream: str, **options: str) -> Callable[[], float]:
        return lambda: write(warm(where()), frame(ROWS), stream, ROWS, maxlen=str(_KEEP), **options)

    @functools.cache
    def loaded(url: str) -> str:
        some = frame(ROWS).limit(_BATCH + _STEADY).cache()
        write(url, some, "in", some.count())
        write(url, some, "in-shards", some.count(), **_SHARDED)
        for stream in ("in", "in-shards"):
            drain(url, stream)  # what the JVM compiles while it is fresh is nobody's figure
        return url

    def source(where: Callable[[], str], stream: str) -> Callable[[], float]:
        return lambda: drain(loaded(where()), stream)

    found = []
    for place, where in (("one server", one_server), ("three masters", masters)):
        found += [
            Row("P28", f"eight shards, written, {place}", f"df.write of {ROWS:,} rows of 2 columns, as many keys, "
                f"local[2], exactly once, maxlen ~ {_KEEP:,}; the same to one stream", "/s", 0.8,
                sink(where, "s", **_SHARDED), sink(where, "one"), "one stream"),
            Row("P29", f"eight shards, read in order, {place}", f"ordered, local[2], noop, {_STEADY:,} entries in "
                f"batches of {_BATCH:,}, after a first one; the same of one stream", "/s", 1.0,
                source(where, "in-shards"), source(where, "in"), "one stream"),
        ]  # fmt: skip
    return found
