"""trim=acked leaves alone what a query with noAck still needs, although nothing of it is pending."""

from __future__ import annotations

import pytest
import redis

from spark_streams.connector.sink.send.chunk_writer import append
from tests.connector.sink.writing import frame, numbers, options
from tools.driving import ALL, LOOK_EACH_TIME, another_reader, drain, forget_all, positions, read, reader
from tools.servers.server import Server

pytestmark = pytest.mark.usefixtures("small_nodes")


def test_the_batch_of_a_query_that_was_killed_is_still_there(server: Server, client: redis.Redis) -> None:
    """Between reserving and reading, a sink trims what everybody has acknowledged."""
    try:
        pipe = client.pipeline(transaction=False)
        for n in range(300):
            pipe.xadd("out", {"n": n})
        pipe.execute()
        one = reader(server, streams="out", noAck="true")
        start = one.initialOffset()
        end = one.latestOffset(start, ALL)
        assert read(one, start, end) == list(range(300))
        more = [client.xadd("out", {"n": n}) for n in range(300, 400)]
        after = one.latestOffset(end, ALL)
        assert positions(after)["out"] == more[-1]
        one.batches.worker.wait()  # the mark is written there; until then it holds back more
        append([frame([400])], options(server.url, trim="acked"), None)
        kept = sorted(numbers(server))
        assert kept == list(range(300, 401))
        again = reader(server, streams="out", noAck="true")
        assert read(again, end, after) == list(range(300, 400))
        assert drain(again, start=after) == [[400]]
    finally:
        forget_all()


def test_a_query_that_lists_what_it_reads_holds_nothing_else(server: Server, client: redis.Redis) -> None:
    try:
        for n in range(100):
            client.xadd("out", {"n": n})
        one = another_reader(server, streams="out")
        assert drain(one) == [list(range(100))]
        append([frame([100])], options(server.url, trim="acked"), None)
        assert sorted(numbers(server)) == [100]
    finally:
        forget_all()


def test_so_is_the_first_batch_from_a_stream_that_appeared_since(server: Server, client: redis.Redis) -> None:
    """Nothing of it is committed, and the checkpoint does not name it yet."""
    try:
        client.xadd("out:1", {"n": -1})
        one = reader(server, streamsPattern="out:*", limits=LOOK_EACH_TIME, noAck="true")
        start = one.initialOffset()
        at = one.latestOffset(start, ALL)
        assert read(one, start, at) == [-1]
        for n in range(300):
            client.xadd("out:2", {"n": n})
        end = one.latestOffset(at, ALL)
        one.batches.worker.wait()
        append([frame([300])], options(server.url, stream="out:2", trim="acked"), None)
        assert read(one, at, end) == list(range(300))
    finally:
        forget_all()
