"""A stream that is named and not there: said when the query starts, with the nearest name; refused where it is asked
for."""

from __future__ import annotations

import functools

import pytest
import redis

from spark_streams.connector.errors import DataLossError, GroupMissingError, StreamMissingError
from spark_streams.connector.wire import scan
from tools import driving
from tools.driving import ALL, LOOK_EACH_TIME, add, drain, reader
from tools.servers.server import Server

by_pattern = functools.partial(driving.reader, limits=LOOK_EACH_TIME)


def streams_of(client: redis.Redis) -> list[str]:
    return sorted(client.scan_iter(_type="stream"))


def test_a_stream_that_does_not_exist_is_reported_once_with_the_nearest_name(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 3, "orders")
    add(client, 3, "returns")
    one = reader(server, streams="odrers,orders")
    one.prepareForTriggerAvailableNow()
    assert sorted(n for batch in drain(one) for n in batch) == [0, 1, 2]
    assert caplog.messages == [
        f"stream 'odrers' at {server.url} does not exist yet; waiting for its first entry (did you mean 'orders'?)"
    ]


def test_a_stream_that_an_earlier_run_created_and_that_is_still_empty_is_reported_again(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 3, "orders")
    drain(reader(server, streams="odrers"))
    caplog.clear()
    drain(reader(server, streams="odrers"))
    assert caplog.messages == [
        f"stream 'odrers' at {server.url} has never had an entry; waiting for its first entry (did you mean 'orders'?)"
    ]


def test_a_stream_that_has_had_entries_is_waited_for_without_a_word(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.xdel("s", *add(client, 3))
    drain(reader(server))
    assert caplog.messages == []


def test_where_no_name_is_near_none_is_guessed(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 3, "orders")
    client.set("tensors", "no stream")
    drain(reader(server, streams="sensors"))
    [line] = caplog.messages
    assert line.endswith("'sensors' at " + server.url + " does not exist yet; waiting for its first entry")


def test_a_server_with_many_keys_is_not_searched(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_SCAN_COUNT", 10)
    monkeypatch.setattr(scan, "_FEW", 20)
    add(client, 1, "orders")
    client.mset({f"key:{n}": n for n in range(200)})
    drain(reader(server, streams="odrers"))
    [line] = caplog.messages
    assert "did you mean" not in line


def test_a_user_who_may_not_look_gets_no_hint(redis_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """(The bundled engine has no ACLs.)"""
    with redis_server.client(decode_responses=True) as admin:
        admin.flushall()
        add(admin, 1, "orders")
        admin.execute_command("ACL", "SETUSER", "blind", "reset", "on", ">pw", "~*", "+@all", "-scan")
        drain(reader(Server("redis", redis_server.url.replace("://", "://blind:pw@")), streams="odrers"))
        admin.acl_deluser("blind")
    [line] = caplog.messages
    assert line.endswith("does not exist yet; waiting for its first entry")


@pytest.mark.in_turn
def test_many_streams_are_a_few_lines(server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    drain(reader(server, streams=",".join(f"s{n}" for n in range(50))))
    assert len(caplog.messages) == 6
    assert caplog.messages[-1].startswith("45 more streams at ")


def test_a_pattern_that_matches_nothing_says_so_once(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, 3, "orders:1")
    one = by_pattern(server, streamsPattern="odrers:*")
    at = one.initialOffset()
    for _ in range(3):
        assert one.latestOffset(at, ALL) == at
    assert caplog.messages == [
        f"no stream with entries at {server.url} matches 'odrers:*' (did you mean 'orders:1'?); "
        "waiting for the first one"
    ]


# -- createStreams=false -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("no_ack", ["false", "true"])
@pytest.mark.parametrize("available_now", [False, True])
def test_a_stream_that_is_not_to_be_waited_for_is_refused_and_nothing_is_made(
    server: Server, client: redis.Redis, available_now: bool, no_ack: str
) -> None:
    add(client, 3, "orders")
    add(client, 3, "returns")
    one = reader(server, streams="odrers,returns", createStreams="false", noAck=no_ack)
    if available_now:
        one.prepareForTriggerAvailableNow()
    at = one.initialOffset()
    with pytest.raises(
        StreamMissingError,
        match="stream 'odrers' does not exist at .* \\(did you mean 'orders'\\?\\).*createStreams=true",
    ):
        one.latestOffset(at, ALL)
    one.stop()
    assert streams_of(client) == ["orders", "returns"]
    assert client.xinfo_groups("returns") == []
    assert sorted(client.keys()) == ["orders", "returns"], "nor is a position kept for it"


def test_streams_that_are_there_are_read_as_ever(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    assert drain(reader(server, createStreams="false")) == [[0, 1, 2]]


def test_one_that_the_query_is_given_later_is_refused_too(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    one = reader(server, createStreams="false")
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    again = reader(server, streams="s,t", createStreams="false")
    again.initialOffset()
    with pytest.raises(StreamMissingError, match="stream 't'"):
        again.latestOffset(end, ALL)
    assert streams_of(client) == ["s"]


@pytest.mark.parametrize("streams", ["s", "s,t"])
def test_one_that_the_checkpoint_knows_is_a_loss(server: Server, client: redis.Redis, streams: str) -> None:
    add(client, 3)
    add(client, 3, "t")
    one = reader(server, streams=streams, createStreams="false")
    end = one.latestOffset(one.initialOffset(), ALL)
    client.delete("s")
    again = reader(server, streams=streams, createStreams="false")
    again.initialOffset()
    with pytest.raises((DataLossError, GroupMissingError), match="'s'"):
        again.latestOffset(end, ALL)
    assert streams_of(client) == ["t"]
    lenient = reader(server, streams=streams, createStreams="false", failOnDataLoss="false")
    lenient.initialOffset()
    lenient.latestOffset(end, ALL)
    assert "s" in streams_of(client)


def test_a_stream_that_appears_before_the_first_trigger_is_read(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    one = reader(server, streams="s,t", createStreams="false")
    at = one.initialOffset()
    add(client, 2, "t", first=10)
    end = one.latestOffset(at, ALL)
    assert sorted(driving.read(one, at, end)) == [0, 1, 2, 10, 11]


# -- why the group is made before the stream's first entry -------------------------------------------------------------


def _removes_at_once(server: Server, client: redis.Redis) -> list[list[int]]:
    """Run another query with onCommit=delete, which is quicker, to its end."""
    return drain(driving.another_reader(server, group="quick", onCommit="delete"))


def test_entries_of_a_new_stream_wait_for_each_query_that_has_begun(server: Server, client: redis.Redis) -> None:
    """The query is busy, or between two looks, when the first entries come and another query removes them."""
    one = reader(server, limits=driving.NEVER_AHEAD, startingOffsets="latest")
    at = one.initialOffset()
    assert one.latestOffset(at, ALL) == at
    add(client, 3)
    assert _removes_at_once(server, client) == [[0, 1, 2]]
    assert drain(one) == [[0, 1, 2]]


def test_under_a_pattern_they_do_not(server: Server, client: redis.Redis) -> None:
    """A stream that the pattern has not found has no group of the query: what others remove is not noticed."""
    one = driving.reader(server, limits=LOOK_EACH_TIME, streamsPattern="s*")
    at = one.initialOffset()
    assert one.latestOffset(at, ALL) == at
    add(client, 3)
    assert _removes_at_once(server, client) == [[0, 1, 2]]
    assert drain(one) == []


def test_entries_that_come_while_a_query_without_a_batch_is_stopped_are_read(
    server: Server, client: redis.Redis
) -> None:
    """No checkpoint names the stream yet, and startingOffsets=latest would pass over them."""
    one = reader(server, startingOffsets="latest")
    one.latestOffset(one.initialOffset(), ALL)
    one.stop()
    add(client, 3)
    assert drain(reader(server, startingOffsets="latest")) == [[0, 1, 2]]
