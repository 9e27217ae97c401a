"""A batch that kills its query is narrowed until the entry that does it is alone, and dead; everything else flows."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.errors import DataLossError, ServerUnreachableError, StreamStateError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.offset import Offset, Share
from spark_streams.source.recovery.poison_record import (
    Failure,
    Record,
    attempt_key_of,
    is_done_in_sink,
    note_failure,
)
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import Connection
from tests.source.supervised import LETTERS, Supervised, consumers, dead_letters
from tools.driving import ALL, SCHEMA, add, drain, pending_count, read, reader, rows
from tools.servers.server import Server


def test_a_connection_that_breaks_while_a_run_is_counted_counts_it_once(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, 3)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    honest = Record.save

    def breaks(self: Record, *given: Any) -> None:
        honest(self, *given)
        monkeypatch.setattr(Record, "save", honest)
        raise ServerUnreachableError("it closed the connection")

    monkeypatch.setattr(Record, "save", breaks)
    assert read(one, start, end) == [0, 1, 2]
    [key] = client.keys("rstream:attempts*")
    assert json.loads(str(client.get(key)))["runs"] == 1


@pytest.mark.parametrize("poison", [set(), {0}, {137}, {5, 6, 250}])
def test_the_entry_that_kills_is_found_and_the_others_flow_once(
    server: Server, client: redis.Redis, poison: set[int]
) -> None:
    ids = add(client, 300)
    query = Supervised(server, poison)
    query.run()
    assert sorted(query.rows) == [n for n in range(300) if n not in poison]
    told = [(fields["n"], fields["dl.id"], fields["dl.reason"]) for _, fields in client.xrange("dead")]
    assert sorted(told, key=lambda one: int(one[0])) == [(str(n), ids[n], "poison") for n in sorted(poison)]
    assert pending_count(client) == 0
    assert consumers(client) == {"spark": 0}
    assert query.starts <= 1 + 2 * bool(poison) + 9 * len(poison)


@pytest.mark.parametrize("how", ["trim", "delete"])
def test_committed_entries_leave_while_pieces_of_a_batch_are_held(
    server: Server, client: redis.Redis, how: str
) -> None:
    """Another client of another group has some pending, too."""
    ids = add(client, 300)
    client.xgroup_create("s", "other", "0")
    client.xreadgroup("other", "c", {"s": ">"}, count=300)
    client.xack("s", "other", *ids[:50], *ids[60:])
    query = Supervised(server, {5, 137}, onCommit=how)
    query.run()
    assert sorted(query.rows) == [n for n in range(300) if n not in (5, 137)]
    assert dead_letters(client) == [5, 137]
    assert query.lost == 0
    assert {*ids[50:60]} <= {entry for entry, _ in client.xrange("s")}
    client.xack("s", "other", *ids[50:60])
    add(client, 1, first=300)
    client.xreadgroup("other", "c", {"s": ">"}, noack=True)
    query.run()
    assert query.rows[-1] == 300
    query.run()  # it begins with what is committed
    assert client.xlen("s") == 0 if how == "delete" else client.xlen("s") <= 300


def test_pieces_that_kill_nobody_flow_in_order(server: Server, client: redis.Redis) -> None:
    add(client, 300)
    query = Supervised(server, {7})
    query.run()
    assert query.rows[-281:] == list(range(19, 300))


def test_until_something_else_is_read_the_query_keeps_failing(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    query = Supervised(server, {99})
    for _ in range(30):
        assert not query.start()
    assert sorted(query.rows) == list(range(99))
    assert dead_letters(client) == []
    add(client, 30, first=100)
    query.run(7)
    assert sorted(query.rows) == [*range(99), *range(100, 130)]
    assert dead_letters(client) == [99]
    assert consumers(client) == {"spark": 0}


def test_an_entry_that_comes_alone_is_found_by_those_that_follow_it(server: Server, client: redis.Redis) -> None:
    add(client, 1)
    query = Supervised(server, {0})
    starts = 0
    while not dead_letters(client):
        query.start()
        add(client, 3, first=1 + 3 * starts)
        starts += 1
        assert starts < 20
    query.run(1)
    assert sorted(query.rows) == list(range(1, 1 + 3 * starts))


def test_new_entries_and_many_streams(server: Server, client: redis.Redis) -> None:
    add(client, 100, "a")
    add(client, 100, "b", first=1000)
    query = Supervised(server, {40, 1063}, streams="a,b")
    query.start()
    add(client, 20, "a", first=100)
    query.run()
    assert sorted(query.rows) == [n for n in [*range(120), *range(1000, 1100)] if n not in (40, 1063)]
    assert sorted(dead_letters(client)) == [40, 1063]
    assert pending_count(client, "a") == pending_count(client, "b") == 0


def test_a_piece_has_entries_of_many_streams(server: Server, client: redis.Redis) -> None:
    streams = [f"s{at:02d}" for at in range(64)]
    for at, stream in enumerate(streams):
        add(client, 1, stream, first=at)
    query = Supervised(server, {10}, streams=",".join(streams))
    for _ in range(2):
        query.start()
    query.starts = query.busy = 0
    query.run()
    assert sorted(query.rows) == [n for n in range(64) if n != 10]
    assert dead_letters(client) == [10]
    assert query.starts <= 9


def test_claimed_entries_are_narrowed_too(server: Server, client: redis.Redis) -> None:
    client.xgroup_create("s", "g", id="0", mkstream=True)
    add(client, 90)
    client.xreadgroup("g", "bob", {"s": ">"}, count=40)
    query = Supervised(server, {7}, claimIdle="1ms", maxDeliveries="9")
    query.run()
    assert sorted(query.rows) == [n for n in range(90) if n != 7]
    assert dead_letters(client) == [7]
    assert pending_count(client) == 0


def test_the_reason_is_reported_if_it_is_known(server: Server, client: redis.Redis) -> None:
    """Of this entry's deaths, and not of another one's that came later."""
    add(client, 60)
    query = Supervised(server, {20, 40})
    with Connection(Address.parse(server.url)) as connection:
        while len(dead_letters(client)) < 2:
            if not query.start() and 20 in query.died_of:
                note_failure(connection, Offset.from_json(query.log[0]), Failure("ZeroDivisionError", "by 20"))
            add(client, 10, first=60 + 10 * query.starts)
            assert query.starts < 40
    told = {fields["n"]: (fields["dl.error"], fields["dl.message"]) for _, fields in client.xrange("dead")}
    assert told == {
        "20": ("ZeroDivisionError", "by 20"),
        "40": ("", "the query ended each time that it read this entry"),
    }
    assert {fields["dl.stage"] for _, fields in client.xrange("dead")} == {"query"}
    assert client.keys("rstream:failure*") == []


def test_without_a_limit_a_batch_stays_whole(server: Server, client: redis.Redis) -> None:
    add(client, 30)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    for _ in range(5):
        assert read(reader(server), start, end) == list(range(30))


def cut(server: Server, client: redis.Redis, **options: str) -> list[dict[str, Any]]:
    """A batch of 32 entries that has been cut: where it begins and ends. Pieces of two are held."""
    add(client, 32)
    one = reader(server, **LETTERS, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    assert read(reader(server, **LETTERS, **options), start, end) == list(range(32))
    assert read(reader(server, **LETTERS, **options), start, end) == []
    assert sorted(consumers(client).values()) == [0, *[2] * 16]
    return [start, end]


def test_a_committed_piece_whose_settling_a_crash_cut_off_is_not_read_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = cut(server, client)
    one = reader(server, **LETTERS)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    monkeypatch.setattr(one.batches.worker, "submit", lambda job: None)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    again = reader(server, **LETTERS)
    assert read(again, *offsets[-2:]) == [2, 3]
    assert [n for batch in drain(again, start=offsets[-1]) for n in batch] == list(range(4, 32))


@pytest.mark.parametrize("options", [{}], ids=str)
def test_the_pieces_of_a_cut_batch_are_read_without_a_limit_too(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    offsets = cut(server, client)
    again = reader(server, **options)
    assert read(again, *offsets) == []
    add(client, 3, first=32)
    assert drain(again, start=offsets[-1]) == [[n, n + 1] for n in range(0, 32, 2)] + [[32, 33, 34]]
    assert consumers(client) == {"spark": 0}


def test_a_piece_that_died_is_read_without_a_limit_too(server: Server, client: redis.Redis) -> None:
    """However much else there is to read."""
    offsets = cut(server, client)
    one = reader(server, **LETTERS)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    one.partitions(*offsets[-2:])
    one = reader(server, **LETTERS)
    assert read(one, *offsets[-2:]) == []  # cut once more
    add(client, 3, first=32)
    assert sorted(n for batch in drain(reader(server), start=offsets[-1]) for n in batch) == list(range(35))
    assert consumers(client) == {"spark": 0}


def test_moving_entries_to_pieces_counts_no_delivery(server: Server, client: redis.Redis) -> None:
    offsets = cut(server, client)
    one = reader(server, SCHEMA.append(pa.field("_deliveries", pa.int64())), **LETTERS)
    end = one.latestOffset(offsets[-1], ALL)
    assert [(row["n"], row["_deliveries"]) for row in rows(one, offsets[-1], end)] == [(0, 1), (1, 1)]


def test_entries_that_were_deleted_before_their_batch_is_cut_are_counted_once(
    server: Server, client: redis.Redis
) -> None:
    """XCLAIM drops them."""
    lenient = {**LETTERS, "failOnDataLoss": "false"}
    ids = add(client, 32)
    one = reader(server, **lenient)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    client.xdel("s", ids[0], *ids[10:13])
    read(reader(server, **lenient), start, end)
    again = reader(server, **lenient)
    assert read(again, start, end) == []
    assert [n for batch in drain(again, start=end) for n in batch] == [n for n in range(1, 32) if n not in (10, 11, 12)]
    assert again.reportLatestOffset()["lost"] == {"s": 4}


def test_entries_that_were_deleted_before_their_batch_is_cut_are_an_error_once(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 32)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    client.xdel("s", *ids[10:13])
    for _ in range(1):
        with pytest.raises(DataLossError, match="3 of 32 entries of a batch of group 'g'"):
            read(reader(server, **LETTERS), start, end)
    with pytest.raises(DataLossError, match="3 entries of a batch that killed the query were trimmed or deleted"):
        reader(server, **LETTERS).partitions(start, end)
    again = reader(server, **LETTERS)
    assert read(again, start, end) == []
    assert [n for batch in drain(again, start=end) for n in batch] == [n for n in range(32) if n not in (10, 11, 12)]


@pytest.mark.parametrize("is_allowed", [False, True], ids=["strict", "lenient"])
def test_entries_that_were_deleted_while_a_piece_waits_are_an_error_once_or_counted(
    server: Server, client: redis.Redis, is_allowed: bool
) -> None:
    """It is cut before it is read, since one that stands alone waits for others."""
    ids = add(client, 64)
    query = Supervised(server, {1}, failOnDataLoss=str(not is_allowed))
    while query.died_of != {1}:
        query.start()
    client.xdel("s", ids[6])
    if not is_allowed:
        with pytest.raises(DataLossError, match="1 entry of a batch that killed the query was trimmed or deleted"):
            query.run()
    query.run()
    assert sorted(query.rows) == [n for n in range(64) if n not in (1, 6)]
    assert query.lost == int(is_allowed)
    assert dead_letters(client) == [1]


def test_a_record_of_an_unreleased_version_is_refused_with_what_to_do(server: Server, client: redis.Redis) -> None:
    add(client, 6)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    key = "rstream:attempts:{s}:g:spark"
    client.set(key, json.dumps({"token": end["token"], "runs": 1, "run": "x", "narrowed": True}))
    with pytest.raises(
        StreamStateError, match="cannot be read .*Delete it .DEL rstream:attempts.* and start .* a new checkpoint"
    ):
        read(reader(server, **LETTERS), start, end)
    client.delete(key)
    again = reader(server, **LETTERS)
    start = again.initialOffset()
    assert read(again, start, again.latestOffset(start, ALL)) == list(range(6))


def test_a_query_that_has_only_claimed_so_far_is_narrowed_too(server: Server, client: redis.Redis) -> None:
    one = reader(server, streamsPattern="p:*", claimIdle="1ms", **LETTERS)
    start = one.initialOffset()
    add(client, 3, "p:1")
    client.xgroup_create("p:1", "g", id="0")
    client.xreadgroup("g", "bob", {"p:1": ">"})
    time.sleep(0.01)
    end = one.latestOffset(start, ALL)
    assert end["streams"] == {}
    assert read(one, start, end) == [0, 1, 2]


@pytest.mark.parametrize(
    ("note", "closed", "is_done"),
    [
        ("t 3 q", "3", True),
        ("t 3 q", "4", True),
        ("t 3 q", "2", False),
        ("t 3 q", None, False),  # the sink is on another server, or keeps no ledger
        ("another 3 q", "3", False),
        (None, "3", False),
        ("t \xb2 q", "3", False),
        ("t 3 q", "9" * 5000, False),
    ],
)
def test_the_sinks_record_tells_whether_it_has_completed_a_batch(
    server: Server, client: redis.Redis, note: str | None, closed: str | None, is_done: bool
) -> None:
    end = Offset("g", "spark", {"s": StreamId(5, 0)}, {"s": Share(2, True, MIN_ID)}, token="t")
    if note is not None:
        client.set(attempt_key_of(end), note)
    if closed is not None:
        client.hset("rstream:sink:q", "", closed)
    with Connection(Address.parse(server.url)) as there:
        assert is_done_in_sink(there, end) == is_done
