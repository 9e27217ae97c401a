"""What decides how large a batch is, when it is made, and how it is cut into tasks."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.connector.source.offset import Offset
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import (
    ALL,
    LOOK_EACH_TIME,
    NEVER_AHEAD,
    add,
    drain,
    pending_count,
    read,
    reader,
)
from tools.servers.server import Server


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_fewer_entries_than_the_least_wait_but_no_longer_than_the_delay(server: Server, client: redis.Redis) -> None:
    clock = Clock()
    one = reader(server, now=clock, minEntriesPerTrigger="50", maxTriggerDelay="30s")
    start = one.initialOffset()
    add(client, 49)
    assert one.latestOffset(start, ALL) == start
    clock.now += 29
    assert one.latestOffset(start, ALL) == start
    clock.now += 2
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == list(range(49))
    add(client, 49, first=49)
    assert one.latestOffset(end, ALL) == end  # the delay begins anew
    assert pending_count(client) == 0
    add(client, 1, first=98)
    assert read(one, end, one.latestOffset(end, ALL)) == list(range(49, 99))


def test_where_a_run_may_end_with_its_first_batch_that_one_waits_for_nothing(
    server: Server, client: redis.Redis
) -> None:
    """Before Spark 4.2 nobody says whether it will."""
    add(client, 3)
    one = reader(server, minEntriesPerTrigger="10", maxTriggerDelay="1m", first_at_once=True)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [0, 1, 2]
    add(client, 3)
    assert one.latestOffset(end, ALL) == end


def test_available_now_does_not_wait_for_the_least(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server, minEntriesPerTrigger="50")
    one.prepareForTriggerAvailableNow()
    assert drain(one) == [list(range(5))]


def test_leftovers_of_a_crash_do_not_wait_for_the_least(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    crashed = reader(server)
    start = crashed.initialOffset()
    crashed.latestOffset(start, ALL)
    one = reader(server, minEntriesPerTrigger="50")
    assert read(one, start, one.latestOffset(start, ALL)) == list(range(5))


def test_an_ordered_stream_is_one_task_in_stream_order(server: Server, client: redis.Redis) -> None:
    for stream in ("a", "b"):
        add(client, 200, stream)
    one = reader(server, streams="a,b", ordered="true")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    partitions = one.partitions(start, end)
    streams = [{run.stream for run in partition.task.ranges} for partition in partitions]
    assert sorted(map(sorted, streams)) in ([["a"], ["b"]], [["a", "b"]])
    found = read(one, start, end)
    assert found == [*range(200), *range(200)]


def test_at_least_so_many_tasks_are_made_where_there_are_entries_enough(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server, minPartitions="8")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    partitions = one.partitions(start, end)
    assert len(partitions) == 8
    assert read(one, start, end) == list(range(100))
    again = reader(server, minPartitions="8")
    assert len(again.partitions(start, end)) == 8


def test_a_new_group_starts_at_a_time(server: Server, client: redis.Redis) -> None:
    for ms in (1000, 2000, 3000):
        client.xadd("s", {"n": ms}, id=f"{ms}-0")
    assert drain(reader(server, startingTimestamp="2000")) == [[2000, 3000]]
    client.xgroup_destroy("s", "g")
    assert drain(reader(server, startingTimestamp="1970-01-01T00:00:02.001Z")) == [[3000]]


def test_positions_are_given_for_each_stream(server: Server, client: redis.Redis) -> None:
    ids = add(client, 4, "a")
    add(client, 4, "b", first=10)
    add(client, 4, "c", first=20)
    given = f'{{"a": "{ids[1]}", "b": "earliest"}}'
    assert drain(reader(server, streams="a,b,c", startingOffsets=given)) == [[2, 3, 10, 11, 12, 13]]


# -- delivery -------------------------------------------------------------------------------------------------------


def test_no_ack_leaves_nothing_pending_and_the_checkpoint_protects(server: Server, client: redis.Redis) -> None:
    add(client, 200)
    one = reader(server, noAck="true")
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(70))
    assert pending_count(client) == 0
    held = read(one, start, end)
    assert held == list(range(70))
    # Killed after the offset was logged: the same batch. Killed before that: none of it is passed over.
    again = reader(server, noAck="true")
    assert read(again, start, end) == held
    assert drain(again, 70, start=end) == [list(range(70, 140)), list(range(140, 200))]
    once_more = reader(server, noAck="true")
    assert drain(once_more, 70, start=end) == [list(range(70, 140)), list(range(140, 200))]
    assert drain(reader(server, noAck="true"), start=Offset.from_json(end).to_json())[0][0] == 70


def test_no_ack_is_refused_where_others_read_from_the_group(server: Server, client: redis.Redis) -> None:
    add(client, 10)
    client.xgroup_create("s", "g", 0)
    one = reader(server, noAck="true")
    start = one.initialOffset()
    client.xreadgroup("g", "bob", {"s": ">"}, count=3)
    with pytest.raises(Exception, match="RSTREAM_GROUP_SHARED.*'bob' .3 pending .*rstream groups delete"):
        one.latestOffset(start, ALL)
    client.xgroup_delconsumer("s", "g", "bob")
    found: Any = one.latestOffset(start, ALL)
    assert found["streams"].keys() == {"s"}


def test_no_ack_counts_missing_entries(server: Server, client: redis.Redis) -> None:
    ids = add(client, 50)
    one = reader(server, noAck="true")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xdel("s", *ids[5:8])
    with pytest.raises(Exception, match="RSTREAM_DATA_LOSS.*3 entries of a batch"):
        read(one, start, end)


def test_no_ack_killed_before_its_first_checkpoint_starts_at_the_same_place(
    server: Server, client: redis.Redis
) -> None:
    add(client, 10)
    one = reader(server, noAck="true", startingOffsets="latest")
    start = one.initialOffset()
    add(client, 20, first=10)
    one.latestOffset(start, ALL)
    assert one.initialOffset() == start
    again = reader(server, noAck="true", startingOffsets="latest")
    assert again.initialOffset() == start
    assert drain(again, 15) == [list(range(10, 25)), list(range(25, 30))]
    assert client.keys("rstream:start*") == []


def test_no_ack_that_is_turned_off_before_its_first_checkpoint_starts_at_the_same_place(
    server: Server, client: redis.Redis
) -> None:
    add(client, 30)
    one = reader(server, noAck="true")
    one.latestOffset(one.initialOffset(), ReadMaxRows(15))
    again = reader(server)
    assert drain(again, 20) == [list(range(20)), list(range(20, 30))]
    assert pending_count(client) == 0
    add(client, 1, first=30)
    assert drain(again, start=again.initialOffset()) == [[30]]
    assert client.keys("rstream:start*") == []


@pytest.mark.parametrize("how", ["pattern", "named"])
def test_no_ack_killed_before_a_checkpoint_knows_a_new_stream_starts_it_at_the_same_place(
    server: Server, client: redis.Redis, how: str
) -> None:
    before, after = ({"streamsPattern": "?"}, {"streamsPattern": "?"})
    if how == "named":
        before, after = ({"streams": "a"}, {"streams": "a,b"})
    add(client, 3, "a")
    one = reader(server, limits=LOOK_EACH_TIME, noAck="true", **before)
    end = one.latestOffset(one.initialOffset(), ALL)
    add(client, 5, "b", first=100)
    reader(server, limits=LOOK_EACH_TIME, noAck="true", **after).latestOffset(end, ALL)
    assert drain(reader(server, limits=LOOK_EACH_TIME, noAck="true", **after), start=end) == [list(range(100, 105))]
    assert client.keys("rstream:start*") == []


def test_no_ack_sets_a_group_back_that_another_client_has_moved_on(server: Server, client: redis.Redis) -> None:
    """By hand, or as a query that has lost its lease and has yet to notice."""
    ids = add(client, 40)
    one = reader(server, limits=NEVER_AHEAD, noAck="true")
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(10))
    client.xgroup_setid("s", "g", ids[30])
    assert drain(one, 10, end) == [list(range(n, n + 10)) for n in (10, 20, 30)]


def test_spark_asks_for_the_start_again_when_a_batch_has_been_reserved(server: Server, client: redis.Redis) -> None:
    """S2: the second answer may differ where nothing is pending; the batch is known by its end."""
    add(client, 10)
    one = reader(server, noAck="true")
    end = one.latestOffset(one.initialOffset(), ALL)
    assert read(one, one.initialOffset(), end) == list(range(10))
