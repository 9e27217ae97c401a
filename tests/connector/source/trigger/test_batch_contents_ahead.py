"""Reserving the next batch beside the tasks of the current one, on both servers."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError, ServerUnreachableError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.source.trigger import batch_contents, roles
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import ALL, LOOK_EACH_TIME, NEVER_AHEAD, add, begin, drain, pending_count, positions, read, reader
from tools.servers.server import Server

TEN = ReadMaxRows(10)


def reserved(one: StreamReader, client: redis.Redis, end: dict[str, Any]) -> int:
    """How many entries are reserved for the batch after this one, once that is finished: those pending above it."""
    one.batches.worker.wait()
    above = {stream: f"({at}" for stream, at in positions(end).items()}
    return sum(len(client.xpending_range(stream, "g", at, "+", 100, "spark")) for stream, at in above.items())


def begun(server: Server, **options: str) -> tuple[StreamReader, dict[str, Any], dict[str, Any]]:
    """A query that has made its first batch, of ten: the reader, and where the batch begins and ends."""
    one = reader(server, **options)
    start = one.initialOffset()
    return one, start, one.latestOffset(start, TEN)


def test_the_next_batch_is_there_before_it_is_asked_for(server: Server, client: redis.Redis) -> None:
    add(client, 35)
    one, start, first = begun(server)
    assert reserved(one, client, first) == 10
    assert pending_count(client) == 20
    assert read(one, start, first) == list(range(10))
    assert drain(one, 10, first) == [list(range(10, 20)), list(range(20, 30)), list(range(30, 35))]
    assert pending_count(client) == 0


def test_streams_share_what_is_reserved_ahead(server: Server, client: redis.Redis) -> None:
    for n in range(3):
        add(client, 20, f"s{n}", first=100 * n)
    one = reader(server, streams="s0,s1,s2")
    batches = drain(one, 9)
    assert [len(batch) for batch in batches] == [9, 9, 9, 9, 9, 9, 6]
    for n in range(3):
        assert [row for batch in batches for row in batch if row // 100 == n] == list(range(100 * n, 100 * n + 20))
        assert pending_count(client, f"s{n}") == 0


def test_what_comes_meanwhile_fills_the_batch(server: Server, client: redis.Redis) -> None:
    add(client, 14)
    one, _, first = begun(server)
    assert reserved(one, client, first) == 4
    add(client, 20, first=14)
    assert drain(one, 10, first) == [list(range(10, 20)), list(range(20, 30)), list(range(30, 34))]


def test_what_a_crash_leaves_reserved_is_the_next_runs(server: Server, client: redis.Redis) -> None:
    add(client, 40)
    one, start, first = begun(server)
    assert reserved(one, client, first) == 10
    again = reader(server)
    assert read(again, start, first) == list(range(10))
    assert drain(again, 10, first) == [list(range(n, n + 10)) for n in (10, 20, 30)]
    assert pending_count(client) == 0


@pytest.mark.parametrize(
    "options",
    [{"claimIdle": "1h"}, {"minEntriesPerTrigger": "31", "maxTriggerDelay": "1h"}],
    ids=str,
)
def test_where_more_must_be_known_first_nothing_is(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    add(client, 40)
    one, start, first = begun(server, **options)
    assert reserved(one, client, first) == 0
    assert sorted(read(one, start, first)) == list(range(10))


def test_a_group_that_others_read_from_is_not_read_ahead_of_time(server: Server, client: redis.Redis) -> None:
    add(client, 40)
    one = reader(server)
    start = begin(one)
    client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    first = one.latestOffset(start, TEN)
    assert reserved(one, client, first) == 0
    [(_, entries)] = client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    assert [int(fields["n"]) for _, fields in entries] == list(range(15, 20))
    assert drain(one, 10, first) == [list(range(20, 30)), list(range(30, 40))]


def test_others_who_come_later_get_theirs(server: Server, client: redis.Redis) -> None:
    """And what they claim of the reserved ones is theirs, too."""
    add(client, 40)
    one, _, first = begun(server)
    assert reserved(one, client, first) == 10
    [(_, entries)] = client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    assert [int(fields["n"]) for _, fields in entries] == list(range(20, 25))
    taken = client.xpending_range("s", "g", "-", "+", 40, "spark")[10:13]
    client.xclaim("s", "g", "bob", 0, [entry["message_id"] for entry in taken])
    found = [n for batch in drain(one, 10, first) for n in batch]
    assert found == [*range(13, 20), *range(25, 40)]
    assert client.xpending("s", "g")["consumers"] == [{"name": "bob", "pending": 8}]


def test_entries_that_are_trimmed_before_the_group_comes_to_them_are_noticed(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at before anything is reserved: later the position says nothing of them."""
    ids = add(client, 40)
    one = reader(server)
    start = one.initialOffset()
    trimmed = batch_contents.fetch_state

    def trimming(*given: Any, **named: Any) -> Any:
        client.xtrim("s", minid=ids[25], approximate=False)
        return trimmed(*given, **named)

    monkeypatch.setattr(batch_contents, "fetch_state", trimming)
    first = one.latestOffset(start, TEN)
    assert reserved(one, client, first) == 0
    with pytest.raises(DataLossError, match="stream 's': 15 entries above .* were trimmed"):
        one.latestOffset(first, TEN)
    lenient = reader(server, failOnDataLoss="false")
    assert drain(lenient, None, first) == [list(range(25, 40))]
    assert lenient.reportLatestOffset()["lost"] == {"s": 15}


def test_a_group_that_was_moved_before_its_next_entries_are_reserved_is_noticed(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reserved behind a move would hide it."""
    ids = add(client, 40)
    one = reader(server)
    start = one.initialOffset()
    asked = batch_contents.fetch_state

    def moving(*given: Any, **named: Any) -> Any:
        client.xgroup_setid("s", "g", ids[19], entries_read=20)
        return asked(*given, **named)

    monkeypatch.setattr(batch_contents, "fetch_state", moving)
    first = one.latestOffset(start, TEN)
    assert reserved(one, client, first) == 0
    with pytest.raises(DataLossError, match="above the checkpoint's"):
        one.latestOffset(first, TEN)


def test_entries_that_are_deleted_when_they_are_reserved_are_missed(server: Server, client: redis.Redis) -> None:
    ids = add(client, 30)
    one, _, first = begun(server, failOnDataLoss="false")
    assert reserved(one, client, first) == 10
    client.xdel("s", *ids[12:15])
    assert drain(one, 10, first) == [[10, 11, *range(15, 20)], list(range(20, 30))]
    assert one.reportLatestOffset()["lost"] == {"s": 3}


def test_a_stream_that_vanishes_takes_what_was_reserved_along(server: Server, client: redis.Redis) -> None:
    add(client, 30)
    one, start, first = begun(server, failOnDataLoss="false")
    assert read(one, start, first) == list(range(10))
    assert reserved(one, client, first) == 10
    client.delete("s")
    add(client, 3, first=100)
    assert drain(one, 10, first) == [[100, 101, 102]]
    assert one.reportLatestOffset()["lost"] == {"s": 20}


def test_a_server_that_is_lost_meanwhile_is_asked_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it was reserved when the connection broke: that half is found as after a crash."""
    add(client, 40)
    one = reader(server)
    start = one.initialOffset()
    honest = roles.reserve

    def breaks(*given: Any) -> Any:
        honest(*given)
        monkeypatch.setattr(roles, "reserve", honest)
        raise ServerUnreachableError("no stream server answers")

    first = one.latestOffset(start, TEN)
    assert reserved(one, client, first) == 10
    monkeypatch.setattr(roles, "reserve", breaks)
    second = one.latestOffset(first, TEN)
    assert read(one, first, second) == list(range(10, 20))
    assert [n for batch in drain(one, 10, second) for n in batch] == list(range(20, 40))
    assert pending_count(client) == 0


def test_available_now_ends_where_it_began(server: Server, client: redis.Redis) -> None:
    add(client, 25)
    one = reader(server)
    one.prepareForTriggerAvailableNow()
    start = one.initialOffset()
    add(client, 25, first=25)
    assert drain(one, 10, start) == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert pending_count(client) == 0
    assert client.xinfo_groups("s")[0]["lag"] == 25


def test_without_a_pending_list_nothing_is_reserved_and_a_crash_moves_no_group(
    server: Server, client: redis.Redis
) -> None:
    """The group is a bookmark: it moves when a batch is committed."""
    ids = add(client, 40)
    one, start, first = begun(server, noAck="true")
    assert read(one, start, first) == list(range(10))
    assert (reserved(one, client, first), client.xinfo_groups("s")[0]["last-delivered-id"]) == (0, "0-0")
    again = reader(server, noAck="true")
    assert drain(again, 10, first) == [list(range(n, n + 10)) for n in (10, 20, 30)]
    group = client.xinfo_groups("s")[0]
    assert (group["last-delivered-id"], group["entries-read"], group["lag"]) == (ids[-1], 40, 0)


def test_without_a_pending_list_a_group_that_was_moved_is_set_back(server: Server, client: redis.Redis) -> None:
    """And a commit that comes before its time takes nothing along."""
    ids = add(client, 40)
    one, _, first = begun(server, noAck="true")
    client.xgroup_setid("s", "g", ids[30])
    second = one.latestOffset(first, TEN)
    assert read(one, first, second) == list(range(10, 20))
    one.commit(second)
    assert drain(one, 10, second) == [list(range(20, 30)), list(range(30, 40))]


def test_a_query_that_ends_finishes_what_it_reserves_before_it_gives_its_lease_back(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, 30)
    one = reader(server)
    start = one.initialOffset()
    leases: list[bool] = []
    honest = roles.reserve

    def watched(*given: Any) -> Any:
        found = honest(*given)
        leases.append(bool(client.keys("rstream:lease:*")))
        return found

    monkeypatch.setattr(roles, "reserve", watched)
    one.latestOffset(start, TEN)
    one.stop()
    assert leases == [True, True]
    assert not client.keys("rstream:lease:*")
    assert pending_count(client) == 20


def test_little_is_not_reserved_ahead(server: Server, client: redis.Redis) -> None:
    add(client, 30)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    first = one.latestOffset(start, TEN)
    assert reserved(one, client, first) == 0
    assert pending_count(client) == 10


def test_nothing_is_left_to_reserve_after_all(server: Server, client: redis.Redis) -> None:
    add(client, 30)
    one = reader(server)
    start = one.initialOffset()
    first = one.latestOffset(start, ALL)
    assert reserved(one, client, first) == 0
    assert read(one, start, first) == list(range(30))


@pytest.mark.parametrize("crashed", [False, True])
def test_what_vanishes_after_a_batch_that_was_reserved_ahead_is_counted(
    server: Server, client: redis.Redis, crashed: bool
) -> None:
    """Its entries were read by the group before it was made, and count as read once."""
    add(client, 30)
    one = reader(server, failOnDataLoss="false")
    start = one.initialOffset()
    first = one.latestOffset(start, TEN)
    assert reserved(one, client, first) == 10
    if crashed:
        one = reader(server, failOnDataLoss="false")
    second = one.latestOffset(first, TEN)
    assert read(one, first, second) == list(range(10, 20))
    assert reserved(one, client, second) == (0 if crashed else 10)
    client.delete("s")
    add(client, 3, first=100)
    assert drain(one, 10, second) == [[100, 101, 102]]
    assert one.reportLatestOffset()["lost"] == {"s": 10}


@pytest.mark.parametrize("strict", [False, True])
def test_a_consumer_that_is_deleted_takes_what_was_reserved_along(
    server: Server, client: redis.Redis, strict: bool
) -> None:
    """Also on a stream that the batch before took nothing from."""
    add(client, 6, "a")
    add(client, 6, "b", first=100)
    one = reader(server, streams="a,b", failOnDataLoss=str(strict).lower())
    start = one.initialOffset()
    first = one.latestOffset(start, ReadMaxRows(1))
    assert reserved(one, client, first) == 1
    found = read(one, start, first)
    [other] = {"a", "b"} - set(first["batch"])
    client.xgroup_delconsumer(other, "g", "spark")
    if strict:
        with pytest.raises(DataLossError, match="the entries in between are not pending for consumer 'spark'"):
            one.latestOffset(first, ReadMaxRows(1))
    else:
        found += [n for batch in drain(one, 1, first) for n in batch]
        assert sorted(found) == [*range(6), *range(100, 106)]


def test_without_a_pending_list_a_stream_that_the_checkpoint_does_not_know_is_set_back(
    server: Server, client: redis.Redis
) -> None:
    """It has appeared since, and its turn has not come when the query dies."""
    options = {"noAck": "true", "streamsPattern": "o:*"}
    add(client, 10, "o:1")
    one = reader(server, limits=LOOK_EACH_TIME, **options)
    start = one.initialOffset()
    first = one.latestOffset(start, ReadMaxRows(1))
    add(client, 5, "o:2", first=100)
    second = one.latestOffset(first, ReadMaxRows(1))
    assert positions(second)["o:2"] == "0-0"
    found = [*read(one, start, first), *read(one, first, second)]
    found += [n for batch in drain(reader(server, limits=LOOK_EACH_TIME, **options), 1, second) for n in batch]
    assert sorted(found) == [*range(10), *range(100, 105)]
    assert client.keys("rstream:start*") == []


@pytest.mark.parametrize("unfinished", [False, True])
@pytest.mark.parametrize("before", ["true", "false"])
def test_a_pending_list_is_done_without_or_taken_up_between_two_runs(
    server: Server, client: redis.Redis, before: str, unfinished: bool
) -> None:
    """What was reserved ahead is read by the next run all the same, and none of it stays pending."""
    add(client, 40)
    one = reader(server, noAck=before)
    start = one.initialOffset()
    first = one.latestOffset(start, TEN)
    assert reserved(one, client, first) == (0 if before == "true" else 10)
    again = reader(server, noAck="false" if before == "true" else "true")
    if unfinished:
        assert read(again, start, first) == list(range(10))
    assert drain(again, 10, first) == [list(range(n, n + 10)) for n in (10, 20, 30)]
    assert pending_count(client) == 0
