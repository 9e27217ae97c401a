"""A batch that kills its query is narrowed until the entry that does it is alone, and dead; everything else flows."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.counters import LOST
from spark_streams.connector.errors import DataLossError, ServerUnreachableError, StreamStateError
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.source.pending import poison_record
from spark_streams.connector.source.pending.poison_record import (
    PoisonRecord,
    QueryFailure,
    attempt_key_of,
    is_done_in_sink,
    note_failure,
)
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.connector.source.supervised import LETTERS, Supervised, consumers, dead_letters
from tools.driving import ALL, NEVER_AHEAD, SCHEMA, add, begin, drain, pending_count, read, reader, rows, stop_all
from tools.sending import before_sending, lost
from tools.servers.server import Server

pytestmark = pytest.mark.in_turn


@pytest.fixture
def sixteenths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are cut into sixteen pieces, too, so that pieces have several entries."""
    monkeypatch.setattr(poison_record, "SINGLES", 1)


def test_a_connection_that_breaks_while_a_run_is_counted_counts_it_once(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, 3)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    honest = PoisonRecord.save

    def breaks(self: PoisonRecord, *given: Any) -> None:
        honest(self, *given)
        monkeypatch.setattr(PoisonRecord, "save", honest)
        raise ServerUnreachableError("it closed the connection")

    monkeypatch.setattr(PoisonRecord, "save", breaks)
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


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(1000)], ids=["all", "1000"])
def test_what_two_poisonous_entries_of_a_thousand_cost_and_their_deliveries(
    server: Server, client: redis.Redis, limit: ReadMaxRows
) -> None:
    """docs/guide/dead-letters.md says how many runs fail: three of the whole batch, then for each of the two one of a
    piece, and six of the entry alone. So each of them was delivered to ten runs."""
    add(client, 1000)
    query = Supervised(server, {137, 640}, limit, maxDeliveries="3")
    query.run()
    failed = query.starts - 1
    letters = client.xrange("dead")
    assert failed == 17
    assert [(fields["n"], fields["dl.deliveries"]) for _, fields in letters] == [("137", "10"), ("640", "10")]


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
                note_failure(connection, Offset.from_json(query.log[0]), QueryFailure("ZeroDivisionError", "by 20"))
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


RECORD = "rstream:attempts:{s}:g:spark"


def cut(server: Server, client: redis.Redis, **options: str) -> list[dict[str, Any]]:
    """A batch of 32 entries that has been cut: where it begins and ends. Pieces of two are held."""
    add(client, 32)
    one = reader(server, **LETTERS, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    assert read(reader(server, **LETTERS, **options), start, end) == list(range(32))
    assert read(reader(server, **LETTERS, **options), start, end) == []
    assert (consumers(client), len(json.loads(client.get(RECORD) or "{}")["pieces"])) == ({"spark": 32}, 16)
    return [start, end]


@pytest.mark.parametrize("is_older", [False, True], ids=["deleted", "older"])
@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}], ids=["strict", "lenient"])
def test_a_record_that_is_lost_before_its_batch_is_acknowledged_is_noticed(
    server: Server, client: redis.Redis, is_older: bool, options: dict[str, str]
) -> None:
    """Nothing proves that the batch was read: a lenient query reads it again, and counts one."""
    add(client, 10)
    one = reader(server, **LETTERS)
    log = [one.initialOffset()]
    for _ in range(2):
        before = client.get(RECORD)
        log.append(one.latestOffset(log[-1], ReadMaxRows(5)))
        assert len(read(one, *log[-2:])) == 5
    stop_all()
    client.set(RECORD, before) if is_older and before else client.delete(RECORD)
    again = reader(server, **LETTERS, **options)
    if not options:
        with pytest.raises(DataLossError, match=f"key {RECORD!r} was deleted.* the proof that the batch was read.*"):
            again.latestOffset(log[-1], ALL)
        assert consumers(client) == {"spark": 5}
        return
    end = again.latestOffset(log[-1], ALL)
    assert read(again, log[-1], end) == list(range(5, 10))
    assert again.latestOffset(end, ALL) == end
    assert (consumers(client), again.reportLatestOffset()["lost"]) == ({"spark": 0}, {"s": 1})


def test_a_running_query_knows_which_batches_it_has_read(server: Server, client: redis.Redis) -> None:
    add(client, 10)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == list(range(10))
    client.delete(RECORD)
    assert one.latestOffset(end, ALL) == end
    assert (consumers(client), one.reportLatestOffset().get("lost")) == ({"spark": 0}, None)


def test_a_running_query_knows_which_batch_it_has_cut(server: Server, client: redis.Redis) -> None:
    """Also if a failover has lost what the record says of that."""
    add(client, 10)
    options = {**LETTERS, "maxDeliveries": "1"}
    one = reader(server, **options)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    stop_all()
    before = client.get(RECORD)
    assert before is not None
    one = reader(server, **options)
    assert read(one, start, end) == []
    client.set(RECORD, before)
    client.client_kill_filter(_type="normal", skipme=True)
    assert sorted(n for batch in drain(one, start=end) for n in batch) == list(range(10))
    assert consumers(client) == {"spark": 0}


def test_entries_of_a_stream_that_leaves_the_list_and_comes_back_are_not_acknowledged_unread(
    server: Server, client: redis.Redis
) -> None:
    """The batch that its query died of was cut, and runs without the stream have gone on meanwhile."""
    both, without = (
        {**LETTERS, "maxDeliveries": "1", "streams": "a,b"},
        {**LETTERS, "maxDeliveries": "1", "streams": "b"},
    )
    add(client, 100, "a")
    one = reader(server, **both)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    one.partitions(at, end)  # and dies
    for run in range(4):
        one = reader(server, **without)
        if run == 0:
            assert read(one, at, end) == []  # cut: no batch has its entries
        add(client, 1, "b", first=1_000 + run)
        new = one.latestOffset(end, ALL)
        assert read(one, end, new) == [1_000 + run]
        assert one.latestOffset(new, ALL) == new
        end = new
    assert pending_count(client, "a") == 100
    found = drain(reader(server, **both), start=end)
    assert sorted(n for batch in found for n in batch) == list(range(100))
    assert pending_count(client, "a") == 0


@pytest.mark.parametrize("left_out", [False, True])
def test_entries_set_aside_that_are_missing_without_max_deliveries_are_named(
    server: Server, client: redis.Redis, left_out: bool
) -> None:
    """The query's consumer was deleted meanwhile, with what was pending. left_out: a run without the stream first."""
    options = {**LETTERS, "maxDeliveries": "1", "streams": "a,b"}
    add(client, 12, "a")
    one = reader(server, **options)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    one.partitions(at, end)  # and dies
    assert read(reader(server, **options), at, end) == []  # cut: no batch has its entries
    if left_out:
        assert reader(server, streams="b").latestOffset(end, ALL) == end
    stop_all()
    client.xgroup_delconsumer("a", "g", "spark")
    for _ in range(2):
        with pytest.raises(DataLossError, match="stream 'a': 1 entry of a batch that killed"):
            reader(server, streams="a,b").latestOffset(end, ALL)
        stop_all()
    lenient = reader(server, streams="a,b", failOnDataLoss="false")
    assert lenient.latestOffset(end, ALL) == end
    assert lenient.batches.counters.entries(LOST) == {"a": 12}


def test_what_a_late_task_notes_of_a_batch_that_was_cut_is_void(server: Server, client: redis.Redis) -> None:
    """Else its entries become dead letters, and are missing from the pieces."""
    options = {**LETTERS, "maxDeliveries": "1", "mode": "DEADLETTER", "limits": NEVER_AHEAD}
    add(client, 3)
    client.xadd("s", {"n": "no number"})
    one = reader(server, **options)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    late = one.partitions(at, end)  # and the driver dies
    assert read(reader(server, **options), at, end) == []  # cut: no batch has its entries
    for partition in late:
        assert list(one.read(partition))
    assert sorted(n for batch in drain(reader(server, **options), start=end) for n in batch) == [0, 1, 2]
    assert [fields["n"] for _, fields in client.xrange("dead")] == ["no number"]
    assert pending_count(client) == 0


def test_a_small_batch_is_cut_into_single_entries(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says which entry has killed the query, and how far the search is."""
    ids = add(client, 100)
    query = Supervised(server, {41})
    starts = 0
    while not dead_letters(client):
        query.start()
        add(client, 8, first=100 + 8 * starts)
        starts += 1
    assert starts <= 9
    said = [one.getMessage() for one in caplog.records if "has killed the query" in one.getMessage()]
    assert "a batch of 100 entries has killed the query 2 times (stream 's', above 0-0)" in said[0]
    assert "It is read as 100 pieces of up to 1 entries" in said[0]
    assert f"entry {ids[41]} has killed the query, death 1 of 6. It is read again after 1 other batches" in said[1]


@pytest.mark.usefixtures("sixteenths")
def test_a_committed_piece_whose_settling_a_crash_cut_off_is_not_read_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = cut(server, client)
    one = reader(server, **LETTERS)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    assert read(one, *offsets[-2:]) == [0, 1]
    monkeypatch.setattr(one.batches.worker, "submit", lambda job: None)
    offsets.append(one.latestOffset(offsets[-1], ALL))
    again = reader(server, **LETTERS)
    assert read(again, *offsets[-2:]) == [2, 3]
    assert [n for batch in drain(again, start=offsets[-1]) for n in batch] == list(range(4, 32))


@pytest.mark.usefixtures("sixteenths")
def test_without_a_limit_the_sink_learns_that_entries_are_set_aside_until_they_are_read(
    server: Server, client: redis.Redis
) -> None:
    """It may still have rows of them: else it writes these a second time."""
    offsets = cut(server, client)
    again = reader(server)
    assert read(again, *offsets) == []
    end = again.latestOffset(offsets[-1], ReadMaxRows(20))
    assert {one.batch.narrowed for one in again.partitions(offsets[-1], end)} == {True}
    last = again.latestOffset(end, ALL)
    assert {one.batch.narrowed for one in again.partitions(end, last)} == {True}
    add(client, 3, first=32)
    new = again.latestOffset(last, ALL)
    assert {one.batch.narrowed for one in again.partitions(last, new)} == {False}


@pytest.mark.usefixtures("sixteenths")
def test_the_sink_learns_it_also_if_the_connection_breaks_while_a_batch_is_planned(
    server: Server, client: redis.Redis
) -> None:
    """The run then knows nothing of the server any more, also not the record."""
    offsets = cut(server, client)
    again = reader(server, **LETTERS, mode="DEADLETTER")
    assert read(again, *offsets) == []
    end = again.latestOffset(offsets[-1], ALL)
    with before_sending(b"HSET", b"rstream:notes:{s}:g:spark", act=lost, times=1) as broken:
        shares = again.partitions(offsets[-1], end)
    assert broken
    assert {one.batch.narrowed for one in shares} == {True}


@pytest.mark.usefixtures("sixteenths")
@pytest.mark.parametrize("options", [{}], ids=str)
def test_the_pieces_of_a_cut_batch_are_read_without_a_limit_too(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    offsets = cut(server, client)
    again = reader(server, **options)
    assert read(again, *offsets) == []
    add(client, 3, first=32)
    assert drain(again, start=offsets[-1]) == [list(range(35))]  # ordinary old entries, and new ones
    assert json.loads(client.get(RECORD) or "{}")["pieces"] == {}
    assert consumers(client) == {"spark": 0}


@pytest.mark.usefixtures("sixteenths")
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


@pytest.mark.usefixtures("sixteenths")
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


@pytest.mark.usefixtures("sixteenths")
def test_entries_whose_group_is_missing_when_their_batch_is_cut_are_counted(
    server: Server, client: redis.Redis
) -> None:
    """They are not pending any more, so no piece has them."""
    lenient = {**LETTERS, "failOnDataLoss": "false", "streams": "s,t"}
    add(client, 32)
    add(client, 3, "t", first=32)
    one = reader(server, **lenient)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    client.xgroup_destroy("t", "g")
    read(reader(server, **lenient), start, end)
    again = reader(server, **lenient)
    assert read(again, start, end) == []
    assert sorted(n for batch in drain(again, start=end) for n in batch) == list(range(32))
    assert again.reportLatestOffset()["lost"] == {"t": 3}


@pytest.mark.usefixtures("sixteenths")
def test_entries_that_were_deleted_before_their_batch_is_cut_are_an_error_until_they_are_accepted(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, 32)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    client.xdel("s", *ids[10:13])
    for _ in range(1):
        with pytest.raises(DataLossError, match="3 entries of a batch of 32 were"):
            read(reader(server, **LETTERS), start, end)
    assert read(reader(server, **LETTERS), start, end) == []  # cut
    found, log, one = list[int](), [end], reader(server, **LETTERS)

    def go_on() -> None:
        while log[-1] != (more := one.latestOffset(log[-1], ALL)):
            found.extend(read(one, log[-1], more))
            log.append(more)

    with pytest.raises(DataLossError, match="entr.* of a batch of 2 w.* trimmed or deleted"):
        go_on()
    lenient = reader(server, **LETTERS, failOnDataLoss="false")
    found += [n for batch in drain(lenient, start=log[-1]) for n in batch]
    assert found == [n for n in range(32) if n not in (10, 11, 12)]


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
        with pytest.raises(DataLossError, match="1 entry .*of a batch .*was trimmed or deleted"):
            query.run()
        query.options["failOnDataLoss"] = "false"
    query.run()
    assert sorted(query.rows) == [n for n in range(64) if n not in (1, 6)]
    assert query.lost == 1
    assert dead_letters(client) == [1]


def test_a_record_of_an_unreleased_version_is_refused_with_what_to_do(server: Server, client: redis.Redis) -> None:
    add(client, 6)
    one = reader(server, **LETTERS)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    key = "rstream:attempts:{s}:g:spark"
    client.set(key, json.dumps({"token": end["token"], "runs": 1, "run": "x", "narrowed": True}))
    with pytest.raises(
        StreamStateError, match="cannot be read. Delete it .DEL rstream:attempts.* and start .* a new checkpoint"
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
    new = Range("s", MIN_ID, StreamId(5, 0), 2)
    end = Offset("g", "spark", {"s": StreamOffset(StreamId(5, 0), 1, "t")}, {"s": new}, token="t")
    if note is not None:
        token, _, micro_batch = note.partition(" ")
        client.hset(attempt_key_of(end), token, micro_batch)
    if closed is not None:
        client.hset("rstream:sink:q", "", closed)
    with Connection(Address.parse(server.url)) as there:
        assert is_done_in_sink(there, end) == is_done


@pytest.mark.parametrize(
    ("record", "done", "is_done"),
    [
        ({"": "2", "out": "3"}, "3", True),  # the driver was killed before it wrote into the record that 3 is closed
        ({"": "2", "other": "3", "out": "3"}, "3", True),
        ({"": "2", "out": "3"}, None, False),
        ({"": "2", "out": "3"}, "2", False),
        ({"": "2", "out": "2"}, "3", False),
        ({"out": "9" * 5000}, "3", False),
    ],
)
def test_a_batch_that_the_sink_has_begun_to_complete_has_killed_nobody(
    server: Server, client: redis.Redis, record: dict[str, str], done: str | None, is_done: bool
) -> None:
    new = Range("s", MIN_ID, StreamId(5, 0), 2)
    end = Offset("g", "spark", {"s": StreamOffset(StreamId(5, 0), 1, "t")}, {"s": new}, token="t")
    client.hset(attempt_key_of(end), "t", "3 q")
    client.hset("rstream:sink:q", mapping=record)
    if done is not None:
        client.hset("rstream:sink:{out}:q", "done", done)
    with Connection(Address.parse(server.url)) as there:
        assert is_done_in_sink(there, end) == is_done


@pytest.mark.parametrize("count", [32, 300])
def test_a_limit_that_is_set_after_the_batch_has_killed_the_query_finds_the_entry(
    server: Server, client: redis.Redis, count: int
) -> None:
    """The offset of the batch says nothing of a record: it was made without a limit."""
    add(client, count)
    query = Supervised(server, {7})
    query.options = {}
    for _ in range(3):
        assert not query.start()
    query.options = dict(LETTERS)
    while not dead_letters(client):
        query.start()
        add(client, 8, first=count + 8 * query.starts)
        assert query.starts < 40
    query.run()
    added = {int(fields["n"]) for _, fields in client.xrange("s")}
    assert sorted(query.rows) == sorted(added - {7})
    assert query.lost == 0
    assert consumers(client) == {"spark": 0}


def test_a_limit_that_is_removed_after_such_a_batch_was_cut_loses_nothing(server: Server, client: redis.Redis) -> None:
    add(client, 32)
    query = Supervised(server, {7})
    query.options = {}
    query.start()
    query.options = dict(LETTERS)
    query.start()
    query.start()  # it was cut
    query.options, query.poison = {}, set()
    query.run()
    assert sorted(query.rows) == list(range(32))
    query.options = dict(LETTERS)
    add(client, 8, first=32)
    query.run()
    assert sorted(query.rows) == list(range(40))
    assert query.lost == 0
    assert consumers(client) == {"spark": 0}


def test_a_limit_that_is_removed_before_its_batch_was_planned_reads_the_batch_once(
    server: Server, client: redis.Redis
) -> None:
    """The offset names the record. The run that makes it dies before it plans the batch."""
    add(client, 32)
    one = reader(server, **LETTERS)
    log = [one.initialOffset()]
    log.append(one.latestOffset(log[-1], ALL))
    again = reader(server)
    again.initialOffset()
    found = read(again, *log)
    add(client, 3, first=32)
    assert found + [n for batch in drain(again, start=log[-1]) for n in batch] == list(range(35))
    assert consumers(client) == {"spark": 0}


def test_pieces_of_a_batch_that_an_older_checkpoint_does_not_have_are_entries_like_others(
    server: Server, client: redis.Redis
) -> None:
    """The batch was cut, and committed without its entries. Then an older copy of the checkpoint is used."""
    options = {"maxDeliveries": "1", "deadLetterStream": "dead", "limits": NEVER_AHEAD}
    add(client, 3)
    one = reader(server, **options)
    older = one.latestOffset(start := begin(one), ALL)
    assert read(one, start, older) == [0, 1, 2]
    assert one.latestOffset(older, ALL) == older
    add(client, 4, first=3)
    lost = one.latestOffset(older, ALL)
    assert read(one, older, lost) == [3, 4, 5, 6]  # the query is killed
    assert read(reader(server, **options), older, lost) == []
    assert sorted(n for batch in drain(reader(server, **options), start=older) for n in batch) == [3, 4, 5, 6]
    assert pending_count(client) == 0


def test_a_piece_of_a_stream_that_the_query_no_longer_reads_is_forgotten(server: Server, client: redis.Redis) -> None:
    """Its other entries are read once, and not reported as lost."""
    add(client, 4, "a")
    add(client, 4, "b", first=4)
    query = Supervised(server, {0}, streams="a,b")
    for _ in range(20):
        query.start()
        if query.died_of and len(query.died_of) == 1:
            break
    query.options["streams"], query.poison = "a", set()
    query.run()
    query.run()
    assert {*range(4)} <= {*query.rows}
    assert len(query.rows) == len({*query.rows})
    assert query.lost == 0


@pytest.mark.usefixtures("sixteenths")
def test_pieces_of_two_streams_whose_entries_have_the_same_ids_are_different(
    server: Server, client: redis.Redis
) -> None:
    for n in range(64):
        client.xadd("a", {"n": n}, id=f"{n + 1}-0")
        client.xadd("b", {"n": n + 64}, id=f"{n + 1}-0")
    query = Supervised(server, {1}, streams="a,b")
    starts = 0
    while not dead_letters(client):
        query.start()
        for stream in "ab":
            client.xadd(stream, {"n": 128 + 2 * starts + (stream == "b")}, id=f"{100 + starts}-0")
        starts += 1
        assert starts < 60
    query.run()
    expected = {n for n in range(128 + 2 * starts) if n != 1}
    assert sorted(query.rows) == sorted(expected)
    assert query.lost == 0


@pytest.mark.parametrize("options", [{}, {"claimIdle": "1ms"}], ids=["", "claimIdle"])
def test_restarts_add_two_to_the_servers_count_at_most(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """The limit counts the runs that an entry has killed, and not how often the server has delivered it."""
    add(client, 40)
    query = Supervised(server, {7}, maxDeliveries="4", **options)
    counts = []
    while not query.start():
        counts.append(max(int(one["times_delivered"]) for one in client.xpending_range("s", "g", "-", "+", 40)))
        time.sleep(0.002)
    assert len(counts) > 8
    assert max(counts) <= 1 + 2
    assert dead_letters(client) == [7]
