"""Entries that a group has missed before the query's first batch are no loss of the query; later ones are."""

from __future__ import annotations

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import ALL, LOOK_EACH_TIME, NEVER_AHEAD, SMALL, add, begin, drain, pending_count, read, reader
from tools.servers.server import Server


def shared(client: redis.Redis, entries: int, stream: str = "s") -> list[str]:
    """Make a group whose consumer bob has read the first entry."""
    ids = add(client, entries, stream)
    client.xgroup_create(stream, "g", "0")
    client.xreadgroup("g", "bob", {stream: ">"}, count=1)
    return ids


def read_by_bob(client: redis.Redis, stream: str = "s", count: int | None = None) -> None:
    for _, entries in client.xreadgroup("g", "bob", {stream: ">"}, count=count):
        client.xack(stream, "g", *[entry for entry, _ in entries])


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}])
def test_a_trim_before_a_query_joins_a_shared_group(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    shared(client, 5)
    client.xtrim("s", maxlen=1, approximate=False)
    read_by_bob(client)
    query = reader(server, **options)
    start = query.initialOffset()
    assert query.latestOffset(start, ALL) == start
    add(client, 2)
    end = query.latestOffset(start, ALL)
    assert read(query, start, end) == [0, 1]
    assert query.latestOffset(end, ALL) == end
    assert not query.reportLatestOffset().get("lost")
    assert reader(server, **options).latestOffset(end, ALL) == end


@pytest.mark.parametrize("seen_by_bob", [1, 2, 5])
@pytest.mark.parametrize("gone", ["trimmed", "deleted", "all"])
def test_what_left_the_stream_before_a_query_joins_is_no_loss(
    server: Server, client: redis.Redis, gone: str, seen_by_bob: int
) -> None:
    """Also if the group stands amid the entries that are left."""
    ids = shared(client, 10)
    if gone == "trimmed":
        client.xtrim("s", maxlen=5, approximate=False)
    elif gone == "deleted":
        client.xdel("s", *ids[2:5])
    else:
        client.xtrim("s", maxlen=0, approximate=False)
        add(client, 6, first=10)
    read_by_bob(client, count=seen_by_bob)
    query = reader(server)
    start = query.initialOffset()
    end = start
    found: list[int] = []
    while (new := query.latestOffset(end, ALL)) != end:
        found += read(query, end, new)
        query.commit(new)
        end = new
    kept = [int(fields["n"]) for _, fields in client.xrange("s")]
    assert found == kept[len(kept) - len(found) :]
    assert pending_count(client) == 1  # of bob, who has not acknowledged his first entry
    add(client, 1, first=99)
    last = query.latestOffset(end, ALL)
    assert read(query, end, last) == [99]


def test_what_leaves_the_stream_after_a_query_has_joined_is_its_loss(server: Server, client: redis.Redis) -> None:
    shared(client, 5)
    client.xtrim("s", maxlen=1, approximate=False)
    read_by_bob(client)
    query = reader(server)
    start = begin(query)
    add(client, 4)
    client.xtrim("s", maxlen=1, approximate=False)
    with pytest.raises(DataLossError, match="stream 's': at least 3 entries above"):
        query.latestOffset(start, ALL)


def test_a_trim_before_a_query_starts_in_a_group_that_an_operator_has_made(server: Server, client: redis.Redis) -> None:
    """Nobody has read from it."""
    add(client, 5)
    client.xgroup_create("s", "g", "0")
    client.xtrim("s", maxlen=2, approximate=False)
    query = reader(server)
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    assert read(query, start, end) == [3, 4]
    assert query.latestOffset(end, ALL) == end
    add(client, 3)
    client.xtrim("s", maxlen=1, approximate=False)
    with pytest.raises(DataLossError, match="stream 's': 2 entries above"):
        query.latestOffset(end, ALL)


def test_a_trim_of_one_of_several_streams(server: Server, client: redis.Redis) -> None:
    for stream in ("s", "t", "u"):
        shared(client, 5, stream)
    client.xtrim("t", maxlen=1, approximate=False)
    for stream in ("s", "t", "u"):
        read_by_bob(client, stream)
    query = reader(server, streams="s,t,u")
    start = begin(query)
    add(client, 1, "t", first=7)
    end = query.latestOffset(start, ALL)
    assert read(query, start, end) == [7]


def test_a_new_checkpoint_in_a_group_that_the_query_shares(server: Server, client: redis.Redis) -> None:
    """The query was here before, and begins once more at the group's position."""
    shared(client, 5)
    first = reader(server)
    assert drain(first) == [[1, 2, 3, 4]]
    add(client, 4)
    client.xtrim("s", maxlen=1, approximate=False)
    read_by_bob(client)
    again = reader(server)
    start = begin(again)
    add(client, 1, first=7)
    end = again.latestOffset(start, ALL)
    assert read(again, start, end) == [7]


def test_a_stream_that_a_pattern_finds_later_with_a_group_that_others_read(server: Server, client: redis.Redis) -> None:
    add(client, 1, "s:1")
    query = reader(server, limits=LOOK_EACH_TIME, streamsPattern="s:*")
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    assert read(query, start, end) == [0]
    shared(client, 5, "s:2")
    client.xtrim("s:2", maxlen=1, approximate=False)
    read_by_bob(client, "s:2")
    assert query.latestOffset(end, ALL) == end
    add(client, 2, "s:2", first=7)
    new = query.latestOffset(end, ALL)
    assert read(query, end, new) == [7, 8]


def test_the_servers_counters_are_unknown(server: Server, client: redis.Redis) -> None:
    """XGROUP SETID has dropped how many entries the group has read."""
    ids = shared(client, 6)
    client.xtrim("s", maxlen=3, approximate=False)
    client.xgroup_setid("s", "g", ids[4])
    query = reader(server)
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    assert read(query, start, end) == [5]
    add(client, 1, first=7)
    last = query.latestOffset(end, ALL)
    assert read(query, end, last) == [7]


@pytest.mark.parametrize("limits", [NEVER_AHEAD, SMALL], ids=["not ahead", "ahead"])
@pytest.mark.parametrize("joins", ["and reads nothing", "and reads"])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_what_was_deleted_unread_while_the_query_was_alone_is_counted_when_others_join(
    server: Server, client: redis.Redis, restarted: bool, joins: str, limits: Limits
) -> None:
    """The query has read past it, and the end of the stream is far: afterwards nobody could count it."""
    options = {"failOnDataLoss": "false"}
    ids = add(client, 40)
    one = reader(server, limits=limits, **options)
    at, rows = one.initialOffset(), list[int]()
    while len(rows) < 18:
        end = one.latestOffset(at, ReadMaxRows(6))
        one.batches.worker.wait()
        if not rows:
            client.xdel("s", *ids[13:15])
        rows += read(one, at, end)
        at = end
    lost = 2
    if joins == "and reads":
        client.xreadgroup("g", "bob", {"s": ">"}, count=3)
    else:
        client.xdel("s", ids[36])  # nobody has read it: it is lost, too
        client.xgroup_createconsumer("s", "g", "bob")
        lost = 3
    if restarted:
        with pytest.raises(DataLossError, match=f"{lost} entries"):
            reader(server, limits=limits).latestOffset(at, ALL)
        one = reader(server, limits=limits, **options)
    for _ in range(2):
        end = one.latestOffset(at, ReadMaxRows(6))
        rows += read(one, at, end)
        at = end
    assert one.reportLatestOffset()["lost"] == {"s": lost}
    drain(one, start=at)
    assert one.reportLatestOffset()["lost"] == {"s": lost}, "once"
