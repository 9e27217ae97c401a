"""streamsPattern: streams that come and go."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.connection import Connection
from tools import driving
from tools.driving import ALL, LOOK_EACH_TIME, add, drain, pending_count, positions, read
from tools.servers.server import Server

reader = functools.partial(driving.reader, limits=LOOK_EACH_TIME)


def test_streams_that_match_are_read_and_others_are_not(server: Server, client: redis.Redis) -> None:
    add(client, 3, "orders:1")
    add(client, 3, "orders:2", first=10)
    add(client, 3, "returns", first=20)
    client.set("orders:count", "6")
    [found] = drain(reader(server, streamsPattern="orders:*"))
    assert sorted(found) == [0, 1, 2, 10, 11, 12]
    assert client.xinfo_groups("returns") == []


def test_a_stream_that_appears_while_the_query_runs_is_read_from_its_start(server: Server, client: redis.Redis) -> None:
    add(client, 3, "o:1")
    one = reader(server, streamsPattern="o:*", startingOffsets="latest")
    at = one.initialOffset()
    assert one.latestOffset(at, ALL) == at
    add(client, 3, "o:2", first=10)
    end = one.latestOffset(at, ALL)
    assert read(one, at, end) == [10, 11, 12]
    assert drain(one, start=end) == []
    assert pending_count(client, "o:2") == 0


def test_a_stream_that_appeared_while_the_query_was_down_is_read_from_its_start(
    server: Server, client: redis.Redis
) -> None:
    add(client, 3, "o:1")
    one = reader(server, streamsPattern="o:*", startingOffsets="latest")
    at = one.initialOffset()
    add(client, 2, "o:2", first=10)
    again = reader(server, streamsPattern="o:*", startingOffsets="latest")
    again.initialOffset()  # Spark asks for it in every run (S2), and does not use it
    assert drain(again, start=at) == [[10, 11]]


def test_no_stream_at_first(server: Server, client: redis.Redis) -> None:
    one = reader(server, streamsPattern="o:*")
    at = one.initialOffset()
    assert at["streams"] == {}
    assert one.latestOffset(at, ALL) == at
    add(client, 2, "o:1")
    assert drain(one, start=at) == [[0, 1]]


def test_a_stream_that_vanishes_stops_the_query_or_is_counted(server: Server, client: redis.Redis) -> None:
    add(client, 3, "o:1")
    add(client, 5, "o:2", first=10)
    one = reader(server, streamsPattern="o:*")
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    client.delete("o:2")
    with pytest.raises(DataLossError, match="stream 'o:2' at .* is missing"):
        one.latestOffset(end, ALL)
    lenient = reader(server, streamsPattern="o:*", failOnDataLoss="false")
    without = lenient.latestOffset(end, ALL)
    assert read(lenient, end, without) == []
    assert "o:2" not in without["streams"]
    assert lenient.latestOffset(without, ALL) == without
    add(client, 2, "o:2", first=20)
    add(client, 1, "o:1", first=30)
    assert sorted(drain(lenient, start=without)[0]) == [20, 21, 30]


def test_a_stream_that_vanishes_and_is_there_again_at_the_next_look_is_counted(
    server: Server, client: redis.Redis
) -> None:
    add(client, 20, "o:1")
    one = reader(server, streamsPattern="o:*", failOnDataLoss="false")
    at = one.initialOffset()
    end = one.latestOffset(at, ReadMaxRows(8))
    assert read(one, at, end) == list(range(8))
    client.delete("o:1")
    add(client, 2, "o:1", first=20)
    assert drain(one, start=end) == [[20, 21]]
    assert one.reportLatestOffset()["lost"] == {"o:1": 12}


@pytest.mark.parametrize("when", ["planned", "read", "settled beside", "at an idle tick", "committed"])
def test_a_stream_may_vanish_at_any_step_of_a_batch(server: Server, client: redis.Redis, when: str) -> None:
    """The others go on, what is left is settled, and what was claimed from a dead consumer there is no matter."""
    client.xgroup_create("o:2", "g", id="0", mkstream=True)
    add(client, 4, "o:2", first=10)
    client.xreadgroup("g", "bob", {"o:2": ">"}, count=2)
    add(client, 3, "o:1")
    time.sleep(0.02)
    one = reader(server, streamsPattern="o:*", failOnDataLoss="false", claimIdle="10ms")
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert {*end["batch"], *end.get("old", {})} == {"o:1", "o:2"}

    def reached(step: str) -> None:
        if step == when:
            client.delete("o:2")

    reached("planned")
    expected = [0, 1, 2] if when == "planned" else [0, 1, 2, 10, 11, 12, 13]
    assert sorted(read(one, at, end)) == expected
    reached("read")
    if when == "at an idle tick":
        assert one.latestOffset(end, ALL) == end
    else:
        add(client, 1, "o:1", first=3)
    reached("at an idle tick")
    after = one.latestOffset(end, ALL)
    reached("settled beside")
    one.commit(end)
    assert read(one, end, after) == ([] if when == "at an idle tick" else [3])
    reached("committed")
    add(client, 1, "o:1", first=4)
    assert drain(one, start=after) == [[4]]
    assert pending_count(client, "o:1") == 0


def test_a_stream_that_vanished_while_the_query_was_down_takes_only_its_own(
    server: Server, client: redis.Redis
) -> None:
    """The batch that a crash interrupted is read again without it, also where attempts at it are counted."""
    options = {"streamsPattern": "o:*", "failOnDataLoss": "false", "maxDeliveries": "2"}
    options |= {"deadLetterStream": "letters", "claimIdle": "10ms"}
    client.xgroup_create("o:2", "g", id="0", mkstream=True)
    add(client, 4, "o:2", first=10)
    client.xreadgroup("g", "bob", {"o:2": ">"}, count=2)
    add(client, 3, "o:1")
    time.sleep(0.02)
    one = reader(server, **options)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert sorted(read(one, at, end)) == [0, 1, 2, 10, 11, 12, 13]
    client.delete("o:2")
    again = reader(server, **options)
    assert read(again, at, end) == [0, 1, 2]
    assert drain(again, start=end) == [[]]  # the checkpoint forgets the stream
    assert again.reportLatestOffset()["lost"]["o:2"] >= 4
    assert pending_count(client, "o:1") == 0


def test_available_now_reads_the_streams_that_were_there_when_it_began(server: Server, client: redis.Redis) -> None:
    add(client, 3, "o:1")
    one = reader(server, streamsPattern="o:*")
    one.prepareForTriggerAvailableNow()
    at = one.initialOffset()
    add(client, 3, "o:2", first=10)
    assert drain(one, start=at) == [[0, 1, 2]]


def test_the_dead_letter_stream_is_not_read(server: Server, client: redis.Redis) -> None:
    add(client, 2, "o:1")
    add(client, 2, "o:dead", first=10)
    options = {"mode": "DEADLETTER", "deadLetterStream": "o:dead"}
    assert drain(reader(server, streamsPattern="o:*", **options)) == [[0, 1]]


LATEST = {"streamsPattern": "o:*", "startingOffsets": "latest", "failOnDataLoss": "false"}


@pytest.mark.parametrize("ends", ["runs", "restarted", "restarted twice"])
def test_where_no_stream_matched_at_the_start_those_that_come_are_read_from_their_first_entry(
    server: Server, client: redis.Redis, ends: str
) -> None:
    one = reader(server, **LATEST)
    at = one.initialOffset()
    assert one.latestOffset(at, ALL) == at
    add(client, 3, "o:1")
    if ends != "runs":
        one = reader(server, **LATEST)
        at = one.initialOffset()
    if ends == "restarted twice":
        add(client, 3, "o:2", first=10)
        one = reader(server, **LATEST)
        at = one.initialOffset()
    found = [n for batch in drain(one, None, at) for n in batch]
    assert sorted(found) == ([0, 1, 2, 10, 11, 12] if ends == "restarted twice" else [0, 1, 2])


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=str)
def test_after_all_streams_are_deleted_new_streams_are_read_from_their_first_entry(
    server: Server, client: redis.Redis, available_now: bool, killed: bool, options: dict[str, str]
) -> None:
    """The query that comes back is asked where it would begin before it is told where it stands (S2)."""
    one = reader(server, **LATEST, **options)
    add(client, 2, "o:1")
    at = one.initialOffset()
    add(client, 2, "o:1", first=2)
    end = one.latestOffset(at, ALL)
    assert read(one, at, end) == [2, 3]
    assert one.latestOffset(end, ALL) == end
    one = reader(server, **LATEST, **options)
    client.delete("o:1")
    add(client, 3, "o:2", first=10)
    for _ in range(1 + killed):
        one = reader(server, **LATEST, **options)
        if available_now:
            one.prepareForTriggerAvailableNow()
        one.initialOffset()
    assert drain(one, None, end) == [[10, 11, 12]]
    left = [key for key in client.keys("rstream:*") if key.split(":")[1] in ("first", "begun")]
    assert left == []


def test_latest_is_pinned_for_the_streams_of_a_pattern(server: Server, client: redis.Redis) -> None:
    """A query that is killed before its first batch begins at the same entries again."""
    add(client, 3, "o:1")
    add(client, 3, "o:2", first=10)
    at = reader(server, **LATEST).initialOffset()
    add(client, 2, "o:1", first=3)
    add(client, 2, "o:3", first=20)
    one = reader(server, **LATEST)
    assert positions(one.initialOffset()) == {**positions(at), "o:3": "0-0"}
    [found] = drain(one)
    assert sorted(found) == [3, 4, 20, 21]


def test_a_killed_start_leaves_no_mixture(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far it came with its groups, the next run begins as this one was to."""
    for n in range(3):
        add(client, 3, f"o:{n}", first=10 * n)
    for trip in range(3, 12):
        send, trips = Connection.send, 0

        def dying(self: Connection, data: bytes, most: int = trip, send: Any = send) -> None:
            nonlocal trips
            trips += 1
            if trips > most:
                raise KeyboardInterrupt
            send(self, data)

        one = reader(server, **LATEST)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(Connection, "send", dying)
            one.initialOffset()
        client.xadd("o:1", {"n": 100 + trip})
        again = reader(server, **LATEST)
        found = [n for batch in drain(again) for n in batch]
        assert found in ([], [100 + trip])
        client.flushall()
        for n in range(3):
            add(client, 3, f"o:{n}", first=10 * n)


FEW = replace(LOOK_EACH_TIME, pattern_streams=3)


def test_long_names_and_streams_beyond_the_bound_are_left_out(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A log line counts them, once. The offset stays small."""
    for n in range(5):
        add(client, 1, f"o:{n}", first=n)
    for n in range(2):
        add(client, 1, f"o:{n}" + "x" * 2000, first=9)
    one = reader(server, limits=FEW, streamsPattern="o:*")
    at = one.initialOffset()
    assert sorted(n for batch in drain(one, start=at) for n in batch) == [0, 1, 2]
    assert len(json.dumps(one.reportLatestOffset())) < 1000
    [line] = [record.getMessage() for record in caplog.records if "are not read" in record.getMessage()]
    assert "'o:*' matches streams that are not read: 2 beyond the first 3 and 2 with names of more than" in line


@pytest.mark.parametrize("ends", ["runs", "restarted", "restarted with a new checkpoint"])
def test_streams_of_a_stranger_do_not_take_the_places_of_those_that_are_read(
    server: Server, client: redis.Redis, ends: str
) -> None:
    """They would be the first by name."""
    for n in range(3):
        add(client, 1, f"o:z{n}", first=n)
    one = reader(server, limits=FEW, streamsPattern="o:*")
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert sorted(read(one, at, end)) == [0, 1, 2]
    one.commit(end)
    assert one.latestOffset(end, ALL) == end
    for n in range(5):
        add(client, 1, f"o:a{n}", first=100 + n)
        add(client, 1, f"o:z{n % 3}", first=10 + n)
    if ends != "runs":
        one = reader(server, limits=FEW, streamsPattern="o:*")
        at = one.initialOffset()
    found = drain(one, start=at if ends.endswith("new checkpoint") else end)
    assert sorted(n for batch in found for n in batch) == [10, 11, 12, 13, 14]
