"""What a trigger asks the server, and what it brings: little, where nothing has changed."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import BatchReader
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.rows.columns import Columns
from tools.driving import ALL, NEVER_AHEAD, SCHEMA, add, drain, reader, rows
from tools.servers.server import Server

LARGE = 1 << 20


def sent(client: redis.Redis) -> int:
    """Bytes that the server has sent so far."""
    return int(client.info("stats")["total_net_output_bytes"])


def test_idle_triggers_bring_no_entries(redis_server: Server) -> None:
    """XINFO STREAM sends the first and the last entry along, however large. (The engine does not count its bytes.)"""
    with redis_server.client(decode_responses=True) as client:
        client.flushall()
        for n in range(20):
            add(client, 2, f"s{n}")
            client.xadd(f"s{n}", {"n": 2, "x": "x" * LARGE})
        one = reader(redis_server, streams=",".join(f"s{n}" for n in range(20)))
        at = one.initialOffset()
        end = one.latestOffset(at, ALL)
        one.latestOffset(end, ALL)
        before = sent(client)
        for _ in range(10):
            assert one.latestOffset(end, ALL) == end
        assert sent(client) - before < 200_000


def test_what_comes_after_idle_triggers_is_read(server: Server, client: redis.Redis) -> None:
    """Also where as many entries are in the stream as before."""
    add(client, 5)
    one = reader(server, limits=NEVER_AHEAD)
    at = one.initialOffset()
    at = one.latestOffset(at, ALL)
    for n in range(3):
        assert one.latestOffset(at, ALL) == at
        add(client, 1, first=5 + n)
        client.xtrim("s", maxlen=5, approximate=False)
        end = one.latestOffset(at, ALL)
        assert Range.parse("s", end["batch"]["s"]).count == 1
        at = end
    client.xtrim("s", maxlen=0, approximate=False)
    assert one.latestOffset(at, ALL) == at
    add(client, 2, first=10)
    assert drain(one, None, at) == [[10, 11]]


def large_streams(client: redis.Redis, streams: int, entries: int) -> str:
    """Streams with entries of a megabyte; their names."""
    for n in range(streams):
        for _ in range(entries):
            client.xadd(f"s{n}", {"n": 1, "x": "x" * LARGE})
    return ",".join(f"s{n}" for n in range(streams))


@pytest.mark.in_turn
def test_the_first_and_last_entries_of_streams_are_not_in_memory_together(server: Server, client: redis.Redis) -> None:
    """Of 40 streams, which a query looks at when it starts, and again where something has come."""
    one = reader(server, streams=large_streams(client, 40, 1))
    tracemalloc.start()
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    client.xadd("s0", {"n": 1})
    one.latestOffset(end, ALL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * LARGE, "80 MB in each look"


def test_planning_a_batch_read_brings_few_of_large_entries(redis_server: Server) -> None:
    with redis_server.client(decode_responses=True) as client:
        client.flushall()
        names = large_streams(client, 2, 60)
        checked = BatchSourceOptions.parse({"url": redis_server.url, "streams": names, "entriesPerPartition": "5"})
        one = BatchReader(checked, Columns(SCHEMA, True, "PERMISSIVE"))
        before = sent(client)
        tracemalloc.start()
        shares = one.partitions()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sent(client) - before < 120 * LARGE
        assert peak < 20 * LARGE
        assert sum(batch.num_rows for share in shares for batch in one.read(share)) == 120
        assert len(shares) > 4


@pytest.mark.in_turn
def test_an_entry_of_fifty_megabytes_is_read(server: Server, client: redis.Redis) -> None:
    """By a query and by a batch read; the server sends it with XINFO STREAM, too."""
    value = "x" * (50 * LARGE)
    client.xadd("s", {"n": 1})
    client.xadd("s", {"n": 2, "x": value})
    client.xadd("s", {"n": 3})
    schema = SCHEMA.append(pa.field("x", pa.string()))
    one = reader(server, schema)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert [(row["n"], row["x"]) for row in rows(one, start, end)] == [(1, None), (2, value), (3, None)]
    checked = BatchSourceOptions.parse({"url": server.url, "streams": "s"})
    batch = BatchReader(checked, Columns(schema, True, "PERMISSIVE"))
    found = [row for share in batch.partitions() for some in batch.read(share) for row in some.to_pylist()]
    assert [len(row["x"] or "") for row in found] == [0, len(value), 0]
