"""A stream in shards as queries and reads find it: by its name, whoever begins first, and never an empty plain one."""

from __future__ import annotations

import json
import logging
import re
import shlex

import pytest
import redis

from spark_streams.connector.errors import InvalidOptionError, ShardsError, StreamMissingError
from spark_streams.connector.keys import shards_key
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.sink.chunks import Destination
from spark_streams.connector.source.batch_plan import Narrowing, plan_tasks
from spark_streams.connector.wire.connect import connect
from tests.connector.shards.making import by_key, frame, sequence, sharded, shards_there
from tests.connector.sink.writing import batch_of, came_before, close, options, write
from tools.driving import ALL, begin, drain, reader, rows, stop_all
from tools.servers.server import Server

KEY = shards_key("orders").decode()
NAMES = shards_of("orders", 4)


def written(server: Server, count: int = 200, first: int = 0, number: int = 0) -> SinkOptions:
    """So many rows of twenty keys in four shards."""
    checked, batch = sharded(server.url), batch_of(number)
    close(checked, batch, write([frame([(f"k{n % 20}", first + n) for n in range(count)])], checked, batch))
    return checked


def refused_sink(server: Server, words: str, **given: str) -> None:
    checked = options(server.url, stream="orders", **given)
    with connect(checked.address) as one, pytest.raises(ShardsError, match=words):
        Destination.from_options(checked).make_ready(one)


def test_a_query_reads_all_shards_by_the_logical_name(server: Server, client: redis.Redis) -> None:
    written(server)
    [batch] = drain(reader(server, streams="orders"))
    assert sorted(batch) == list(range(200))
    assert not client.exists("orders")


def test_an_ordered_query_has_each_shard_in_one_task_in_its_order(server: Server, client: redis.Redis) -> None:
    """However many entries a batch has, and in the next batch, too."""
    written(server)
    shards = by_key(shards_there(server))
    one = reader(server, streams="orders", ordered="true")
    begin, seen = one.initialOffset(), []
    while (end := one.latestOffset(begin, ALL)) != begin:
        partitions = one.partitions(begin, end)
        of_tasks = [{entries.stream for entries in partition.task.ranges} for partition in partitions]  # type: ignore[attr-defined]
        assert sorted(stream for task in of_tasks for stream in task) == sorted({s for task in of_tasks for s in task})
        seen += rows(one, begin, end)
        begin = end
    found: dict[str, list[int]] = {}
    for row in seen:
        found.setdefault(row["_stream"], []).append(row["n"])
    assert {stream: [n for _, n in entries] for stream, entries in shards_there(server).items()} == found
    assert sum(map(len, shards.values())) == len(seen)


def test_a_query_may_begin_before_the_sink(server: Server, client: redis.Redis) -> None:
    """With option shards it makes them, and reads from the first row on, also with startingOffsets=latest."""
    one = reader(server, streams="orders", shards="4", startingOffsets="latest")
    begin = one.initialOffset()
    assert one.latestOffset(begin, ALL) == begin
    written(server)
    assert client.hgetall(KEY) == {"shards": "4", "rule": "crc32", "by": "key", "made": "1"}
    assert sorted(n for batch in drain(one, start=begin) for n in batch) == list(range(200))


def test_a_sink_after_a_query_that_waits_for_a_plain_stream_is_refused(server: Server, client: redis.Redis) -> None:
    """The error says what to do; doing it, nothing is lost."""
    one = reader(server, streams="orders")
    begin(one)
    refused_sink(server, "without entries: a query that waits for it .*redis-cli DEL orders", shards="4", shardBy="key")
    assert not client.exists(KEY)
    stop_all()
    client.delete("orders")
    written(server)
    [batch] = drain(reader(server, streams="orders"))
    assert len(batch) == 200


def test_a_plain_stream_with_entries_is_not_put_in_shards(server: Server, client: redis.Redis) -> None:
    client.xadd("orders", {"n": 1})
    refused_sink(server, "a plain stream with 1 entries", shards="4", shardBy="key")
    with pytest.raises(ShardsError, match="a plain stream with 1 entries"):
        reader(server, streams="orders", shards="4").initialOffset()
    assert drain(reader(server, streams="orders")) == [[1]]


def test_what_is_in_shards_takes_no_plain_rows_and_no_other_number_or_column(
    server: Server, client: redis.Redis
) -> None:
    written(server)
    refused_sink(server, "is in 4 shards, so no query would read rows that are written to 'orders' itself")
    refused_sink(
        server, "is in 4 shards, but option shards=5. .*rstream shards orders --delete", shards="5", shardBy="key"
    )
    refused_sink(server, "by column 'key', but option shardBy='n'", shards="4", shardBy="n")
    with pytest.raises(ShardsError, match="is in 4 shards, but option shards=5"):
        reader(server, streams="orders", shards="5").initialOffset()
    client.xadd("orders", {"n": -1})  # somebody else does
    for words in ({"shards": "4"}, {}):
        with pytest.raises(
            ShardsError, match=r"is in 4 shards, but there is also a plain stream of that name \(entries: 1\)"
        ) as refused:
            reader(server, streams="orders", **words).initialOffset()
    refused_sink(server, "there is also a plain stream of that name", shards="4", shardBy="key")
    [command] = re.findall("`redis-cli (RENAME .*?)`", str(refused.value))  # the remedy that loses nothing
    client.execute_command(*shlex.split(command))
    reader(server, streams="orders").initialOffset()
    assert client.xlen("NEW-NAME") == 1


@pytest.mark.parametrize("who", ["query", "sink", "read"])
def test_a_key_that_is_lost_is_written_again(
    server: Server, client: redis.Redis, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    written(server)
    client.delete(KEY)
    with caplog.at_level(logging.WARNING):
        if who == "query":
            assert len(drain(reader(server, streams="orders"))[0]) == 200
        elif who == "sink":
            sharded(server.url)
        else:
            assert read(server) == list(range(200))
    assert client.hget(KEY, "shards") == "4"
    assert "was evicted or deleted; there are 4 shards of 'orders'" in caplog.text
    assert not client.exists("orders")


def test_another_number_is_refused_also_where_the_key_is_lost(server: Server, client: redis.Redis) -> None:
    written(server)
    client.delete(KEY)
    refused_sink(server, "is in 4 shards, but option shards=5", shards="5", shardBy="key")
    with pytest.raises(ShardsError, match="is in 4 shards, but option shards=3"):
        reader(server, streams="orders", shards="3").initialOffset()


def test_a_checkpoint_whose_shards_are_all_lost_never_reads_an_empty_stream(
    server: Server, client: redis.Redis
) -> None:
    """It is refused by name; with option shards it goes on as failOnDataLoss says."""
    written(server)
    one = reader(server, streams="orders")
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    one.partitions(begin, end)
    client.flushall()
    with pytest.raises(
        ShardsError, match="the checkpoint has 4 shards of stream 'orders', but .* Start the query with option shards=4"
    ):
        reader(server, streams="orders").latestOffset(end, ALL)
    late = reader(server, streams="orders")
    late.prepareForTriggerAvailableNow()  # comes before Spark tells of a checkpoint
    with pytest.raises(ShardsError, match="redis-cli DEL orders"):
        late.latestOffset(end, ALL)
    client.delete("orders")
    lenient = reader(server, streams="orders", shards="4", failOnDataLoss="false")
    assert lenient.latestOffset(end, ALL) is not None
    came_before(server, number=1)
    written(server, first=1000, number=1)
    assert sorted(n for batch in drain(lenient, start=end) for n in batch) == list(range(1000, 1200))


def test_a_checkpoint_of_another_number_is_refused(server: Server, client: redis.Redis) -> None:
    written(server)
    one = reader(server, streams="orders")
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    stop_all()
    client.flushall()
    sharded(server.url, count=2)
    with pytest.raises(ShardsError, match="has 4 shards of stream 'orders', but .* has 2. .* new checkpoint"):
        reader(server, streams="orders").latestOffset(end, ALL)


def test_positions_of_the_logical_name_are_those_of_its_shards(server: Server, client: redis.Redis) -> None:
    written(server)
    client.xadd("other", {"n": -1})
    given = json.dumps({"orders": "latest", NAMES[2]: "earliest", "other": "earliest"})
    one = reader(server, streams="orders,other", startingOffsets=given)
    [batch] = drain(one)
    third = [n for _, n in shards_there(server)[NAMES[2]]]
    assert third
    assert sorted(batch) == sorted([-1, *third])
    with pytest.raises(InvalidOptionError, match="which is not among streams"):
        reader(server, streams="other", startingOffsets=json.dumps({NAMES[2]: "earliest"}))


def test_a_limit_of_the_logical_name_is_divided_between_its_shards(server: Server, client: redis.Redis) -> None:
    written(server)
    for name in ("orders", "ord*"):
        one = reader(server, streams="orders", group=name, maxEntriesPerTrigger=json.dumps({name: 40}))
        batches = drain(one)
        assert max(map(len, batches)) == 40
        assert sorted(n for batch in batches for n in batch) == list(range(200))


def test_streams_that_must_exist(server: Server, client: redis.Redis) -> None:
    """Shards that have no row yet exist; with createStreams=false nothing else is made."""
    with pytest.raises(StreamMissingError, match="stream 'orders' does not exist"):
        drain(reader(server, streams="orders", createStreams="false"))
    checked, batch = sharded(server.url), batch_of(0)
    close(checked, batch, write([frame([("k1", 1)])], checked, batch))
    assert drain(reader(server, streams="orders", createStreams="false")) == [[1]]
    assert read(server) == [1]


def test_a_pattern_finds_shards_by_their_own_names(server: Server, client: redis.Redis) -> None:
    written(server)
    client.xadd("orders:dead", {"n": -1})
    assert sorted(drain(reader(server, streamsPattern="orders:*/4:*"))[0]) == list(range(200))


def read(server: Server) -> list[int]:
    """Column n by spark.read's plan, without Spark."""
    checked = BatchSourceOptions.parse({"url": server.url, "streams": "orders"})
    with connect(checked.address) as one:
        planned = plan_tasks(one, checked, Narrowing())
        return sorted(
            int(entry[1][entry[1].index(b"n") + 1])
            for task in planned
            for span in task.ranges
            for entry in one.execute("XRANGE", span.stream, f"({span.after}", str(span.last))
        )


def test_a_sink_that_begins_while_a_query_makes_a_plain_stream(server: Server, client: redis.Redis) -> None:
    """The query has found no shards and is about to make the stream when the sink makes them: one of both is told."""
    one = reader(server, streams="orders")
    assert one.batches  # it has looked
    written(server)
    with pytest.raises(ShardsError, match="there is also a plain stream of that name .entries: 0"):
        one.initialOffset()


def test_rows_of_sequence_cover_all_shards() -> None:
    assert {key for key, _ in sequence(60, 20)} == {f"k{n}" for n in range(20)}
