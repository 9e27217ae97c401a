"""How old entries are at the commit of their batch, by the IDs of a few of them."""

from __future__ import annotations

import json
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.offset import Range
from spark_streams.connector.watch.latency import BOUNDS, Latency
from spark_streams.connector.watch.metrics_page import MetricsPage
from spark_streams.connector.watch.progress import Progress, StreamProgress, WatchedQuery, read_progress
from spark_streams.connector.watch.query_metrics import LagCache, QueryCollector
from spark_streams.connector.wire.address import Address
from tools.servers.server import Server

NOW = 1_800_000_000_000


def at(seconds: float) -> StreamId:
    """The ID of an entry that is so old."""
    return StreamId(NOW - round(seconds * 1000), 0)


def counted(*parts: Range, first: dict[Range, StreamId] | None = None) -> Latency:
    latency = Latency()
    for part in parts:
        latency.add(part, first or {}, NOW)
    return latency


def at_most(latency: Latency, bound: str) -> float:
    return latency.counts[BOUNDS.index(bound)]


def test_entries_are_evenly_spread_between_the_first_and_the_last() -> None:
    latency = counted(Range("s", at(2), at(0), 200))
    assert [at_most(latency, bound) for bound in ("0.1", "0.5", "1.0", "2.5", "+Inf")] == [10, 50, 100, 200, 200]
    assert latency.total == 200


def test_batches_add_up_to_growing_buckets() -> None:
    latency = counted(Range("s", at(2), at(0), 200), Range("s", at(40), at(40), 7), Range("s", MIN, at(70), 1))
    assert latency.counts == sorted(latency.counts)
    assert [at_most(latency, bound) for bound in ("30.0", "60.0", "300.0", "+Inf")] == [200, 207, 208, 208]


MIN = StreamId(0, 0)


def test_the_pause_before_the_first_entry_does_not_count() -> None:
    """After an hour of silence: the first entry is asked for. If it is removed already, all are as old as the last."""
    part = Range("s", at(3600), at(1), 100)
    assert at_most(counted(part, first={part: at(3)}), "2.5") == 75
    assert at_most(counted(part), "1.0") == 100
    assert at_most(counted(Range("s", at(3600), at(1), 1)), "1.0") == 1


def test_the_first_of_entries_that_come_without_a_pause_is_near_the_one_before() -> None:
    assert at_most(counted(Range("s", at(9), at(1), 80)), "5.0") == 40


@pytest.mark.parametrize("last", [StreamId(7, 0), StreamId(NOW * 2, 0)])
def test_ids_that_are_no_times_have_no_age(last: StreamId) -> None:
    assert counted(Range("s", StreamId(1, 0), last, 5)).counts[-1] == 0


def test_an_id_that_is_ahead_is_no_negative_age() -> None:
    """The server's clock is ahead of the driver's."""
    assert at_most(counted(Range("s", at(-2), at(-3), 5)), "0.1") == 5


def progress(*streams: str) -> Progress:
    """A batch that was committed NOW. streams: name, and its range."""
    end = {"format": 1, "group": "g", "consumer": "c", "token": "x"}
    end["streams"] = {"s": f"{at(1)} 2.x 7 7"}  # type: ignore[assignment]
    end["batch"] = {"s": streams[0]}  # type: ignore[assignment]
    told = {"id": "q1", "runId": "r", "name": "q", "timestamp": "2027-01-15T07:59:59.750Z", "batchId": 1}
    told |= {"batchDuration": 250, "numInputRows": 3, "sources": [{"endOffset": end, "latestOffset": json.dumps(end)}]}
    return read_progress(told)


def test_first_entries_are_those_that_the_stream_still_has(server: Server, client: redis.Redis) -> None:
    for seconds in (3, 2, 1):
        client.xadd("s", {"n": 1}, id=str(at(seconds)))
    lags = LagCache(Address.parse(server.url))
    of_batch = progress(f"0-0 {at(1)} 3 0")
    part = Range("s", MIN, at(1), 3)
    assert lags.first_entries(of_batch) == {part: at(3)}
    client.xdel("s", *(str(at(seconds)) for seconds in (3, 2, 1)))
    assert lags.first_entries(of_batch) == {}
    assert lags.first_entries(progress(f"0-0 {at(1)} 1 0")) == {}
    lags.close()


def test_first_entries_are_read_one_after_the_other(server: Server, client: redis.Redis) -> None:
    """However many and large they are."""
    parts = [Range(f"s:{number}", MIN, at(1), 2) for number in range(40)]
    for part in parts:
        client.xadd(part.stream, {"large": b"." * (1 << 20)}, id=str(at(2)))
    of_batch = progress(f"0-0 {at(1)} 2 0")
    streams = tuple(StreamProgress(part.stream, str(at(1)), 2, ranges=(part,)) for part in parts)
    of_batch = replace(of_batch, sources=(replace(of_batch.sources[0], streams=streams),))
    lags = LagCache(Address.parse(server.url))
    tracemalloc.start()
    try:
        assert lags.first_entries(of_batch) == dict.fromkeys(parts, at(2))
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
        lags.close()


def test_the_metric_is_a_histogram_by_query_stream_and_group(server: Server, client: redis.Redis) -> None:
    lags, query = LagCache(Address.parse(server.url)), WatchedQuery("q", "q1")
    query.committed(query.progressed(progress(f"0-0 {at(1)} 3 0")), {Range("s", MIN, at(1), 3): at(3)})
    page = MetricsPage(QueryCollector(lambda: [query], lags)).text()
    lags.close()
    labels = 'group="g",query="q",stream="s"'
    assert "# TYPE rstream_latency_seconds histogram" in page
    lines = {
        line.partition(" ")[0]: float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("rstream_latency")
    }
    assert lines[f"rstream_latency_seconds_count{{{labels}}}"] == 3
    assert lines[f"rstream_latency_seconds_sum{{{labels}}}"] == 6
    buckets = {name: value for name, value in lines.items() if "_bucket" in name}
    assert len(buckets) == len(BOUNDS)
    assert [value for name, value in buckets.items() if 'le="2.5"' in name] == [2.25]


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns after a few lines of Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_a_scrape_succeeds_while_a_batch_adds_streams(server: Server) -> None:
    lags, query, of_batch = LagCache(Address.parse(server.url)), WatchedQuery("q", "q1"), progress(f"0-0 {at(1)} 2 0")
    streams = [StreamProgress(f"s{n}", "0-0", 2, ranges=(Range(f"s{n}", at(2), at(1), 2),)) for n in range(600)]

    def add() -> None:
        for stream in streams:
            source = replace(of_batch.sources[0], streams=(stream,))
            query.committed(query.progressed(replace(of_batch, sources=(source,))), {})

    adding = threading.Thread(target=add)
    adding.start()
    while adding.is_alive():
        assert list(QueryCollector(lambda: [query], lags).collect())
    lags.close()
    assert len(query.totals) == len(query.latencies) == len(streams)
