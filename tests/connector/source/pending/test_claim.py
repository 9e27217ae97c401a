"""Entries of dead consumers: taken over once, replayed like any others, dead past the limit."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.errors import DataLossError, ServerUnreachableError
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.pending import claim
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import (
    ALL,
    NEVER_AHEAD,
    SCHEMA,
    SMALL,
    add,
    another_reader,
    drain,
    pending_count,
    read,
    reader,
    rows,
    stop_all,
)
from tools.servers.server import Server

IDLE = "50ms"
TWO = ReadMaxRows(2)
WITH_COUNT = SCHEMA.append(pa.field("_deliveries", pa.int64()))


@pytest.fixture
def group(client: redis.Redis) -> str:
    """Group g of stream s, at its start."""
    client.xgroup_create("s", "g", id="0", mkstream=True)
    return "g"


def left_by_bob(client: redis.Redis, count: int) -> list[str]:
    """Entries that bob has read and not acknowledged, long enough ago."""
    [(_, entries)] = client.xreadgroup("g", "bob", {"s": ">"}, count=count)
    time.sleep(0.08)
    return [entry for entry, _ in entries]


def consumers(client: redis.Redis) -> dict[str, int]:
    return {one["name"]: one["pending"] for one in client.xinfo_consumers("s", "g")}


def test_entries_of_a_dead_consumer_are_taken_over_once(server: Server, client: redis.Redis, group: str) -> None:
    add(client, 10)
    left_by_bob(client, 4)
    one = reader(server, WITH_COUNT, claimIdle=IDLE)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    found = rows(one, start, end)
    assert [(row["n"], row["_deliveries"]) for row in found] == [
        *[(n, 2) for n in range(4)],
        *[(n, 1) for n in range(4, 10)],
    ]
    assert one.latestOffset(end, ALL) == end
    assert consumers(client) == {"bob": 0, "spark": 0}
    assert one.reportLatestOffset()["claimed"] == {"s": 4}


def test_without_claim_idle_and_before_the_time_nothing_is_taken(
    server: Server, client: redis.Redis, group: str
) -> None:
    add(client, 10)
    left_by_bob(client, 4)
    assert drain(reader(server)) == [list(range(4, 10))]
    assert drain(reader(server, claimIdle="1h")) == []
    assert consumers(client)["bob"] == 4


def test_a_claim_keeps_to_the_limit_and_crosses_pages(server: Server, client: redis.Redis, group: str) -> None:
    add(client, 100)
    left_by_bob(client, 50)
    batches = drain(reader(server, limits=replace(SMALL, claim_page=9), claimIdle=IDLE), 30)
    assert [len(batch) for batch in batches] == [30, 30, 30, 10]
    assert sorted(n for batch in batches for n in batch) == list(range(100))
    assert consumers(client) == {"bob": 0, "spark": 0}


def test_a_claimed_batch_is_the_same_after_a_crash(server: Server, client: redis.Redis, group: str) -> None:
    add(client, 20)
    left_by_bob(client, 5)
    crashed = reader(server, claimIdle=IDLE)
    start = crashed.initialOffset()
    end = crashed.latestOffset(start, ReadMaxRows(10))
    held = read(crashed, start, end)
    assert sorted(held) == list(range(10))
    again = reader(server, claimIdle=IDLE)
    assert read(again, start, end) == held
    assert drain(again, start=end) == [list(range(10, 20))]
    assert consumers(client) == {"bob": 0, "spark": 0}


def test_a_claim_that_was_not_logged_is_the_next_batch_of_this_query(
    server: Server, client: redis.Redis, group: str
) -> None:
    add(client, 5)
    left_by_bob(client, 5)
    crashed = reader(server, claimIdle=IDLE)
    start = crashed.initialOffset()
    crashed.latestOffset(start, ALL)
    again = reader(server)  # even if it does not claim any more
    end = again.latestOffset(start, ALL)
    assert read(again, start, end) == list(range(5))
    assert drain(again, start=end) == []
    assert consumers(client) == {"bob": 0, "spark": 0}


def test_a_running_query_keeps_its_entries_and_a_dead_one_does_not(
    server: Server, client: redis.Redis, group: str
) -> None:
    add(client, 10)
    busy = another_reader(server, limits=NEVER_AHEAD, consumer="busy")
    start = busy.initialOffset()
    busy.latestOffset(start, ReadMaxRows(6))
    time.sleep(0.08)
    one = another_reader(server, limits=NEVER_AHEAD, claimIdle=IDLE)
    assert drain(one) == [list(range(6, 10))]
    assert pending_count(client) == 6
    busy.stop()
    assert drain(one) == [list(range(6))]
    assert pending_count(client) == 0


def test_what_a_dead_query_had_claimed_is_claimed_again(server: Server, client: redis.Redis, group: str) -> None:
    add(client, 4)
    left_by_bob(client, 4)
    other = another_reader(server, consumer="other", claimIdle=IDLE)
    other.latestOffset(other.initialOffset(), ALL)
    time.sleep(0.08)
    one = another_reader(server, WITH_COUNT, claimIdle=IDLE)
    start = one.initialOffset()
    assert one.latestOffset(start, ALL) == start  # it lives
    other.stop()
    end = one.latestOffset(start, ALL)
    # bob was given them, and the first query to claim them.
    assert [(row["n"], row["_deliveries"]) for row in rows(one, start, end)] == [(n, 2) for n in range(4)]


def test_an_entry_that_was_delivered_too_often_becomes_one_dead_letter(
    server: Server, client: redis.Redis, group: str
) -> None:
    add(client, 4)
    ids = left_by_bob(client, 4)
    client.xclaim("s", "g", "bob", 0, ids[:1], retrycount=3)
    time.sleep(0.08)
    options = {"claimIdle": IDLE, "maxDeliveries": "3", "deadLetterStream": "dead"}
    one = reader(server, **options)
    assert drain(one) == [[1, 2, 3]]
    assert one.reportLatestOffset()["dead"] == {"s": 1}
    assert drain(reader(server, **options)) == []
    [(_, letter)] = client.xrange("dead")
    assert letter["n"] == "0"
    told = {name: letter[f"dl.{name}"] for name in ("stream", "id", "group", "consumer", "reason", "deliveries")}
    assert told == {
        "stream": "s",
        "id": ids[0],
        "group": "g",
        "consumer": "bob",
        "reason": "deliveries",
        "deliveries": "3",
    }
    assert pending_count(client) == 0


def test_what_a_group_delivers_again_is_not_claimed(server: Server, client: redis.Redis, group: str) -> None:
    """The group was set back below what a dead consumer has: a claim would make dead letters of what is read."""
    ids = add(client, 10)
    left_by_bob(client, 6)
    client.xgroup_setid("s", "g", id=ids[2], entries_read=3)
    options = {"claimIdle": IDLE, "maxDeliveries": "1", "deadLetterStream": "dead"}
    assert sorted(n for batch in drain(reader(server, **options)) for n in batch) == list(range(3, 10))
    assert [fields["n"] for _, fields in client.xrange("dead")] == ["0", "1", "2"]
    assert consumers(client) == {"bob": 0, "spark": 0}


def test_queries_that_die_one_after_the_other_make_no_dead_letter_of_what_they_pass_on(
    server: Server, client: redis.Redis
) -> None:
    """What they die of may have nothing to do with it."""
    add(client, 4)
    start = reader(server).initialOffset()
    for at in range(12):
        one = reader(
            server, consumer=f"q{at % 3}", claimIdle="1ms", maxDeliveries="2", deadLetterStream="dead", group="g"
        )
        time.sleep(0.005)
        one.latestOffset(one.initialOffset(), ALL)
        assert pending_count(client) == 4
    time.sleep(0.08)
    last = reader(server, WITH_COUNT, claimIdle=IDLE, maxDeliveries="2", deadLetterStream="dead")
    end = last.latestOffset(start, ALL)
    assert [(row["n"], row["_deliveries"]) for row in rows(last, start, end)] == [(n, 1) for n in range(4)]
    assert client.xlen("dead") == 0


def test_claimed_entries_that_vanish_before_a_replay_are_an_error_or_counted(
    server: Server, client: redis.Redis, group: str
) -> None:
    add(client, 5)
    ids = left_by_bob(client, 5)
    crashed = reader(server, claimIdle=IDLE)
    start = crashed.initialOffset()
    end = crashed.latestOffset(start, ALL)
    client.xack("s", "g", ids[0], ids[1])
    with pytest.raises(DataLossError, match="2 entries of a batch of 5 were"):
        reader(server, claimIdle=IDLE).partitions(start, end)
    lenient = reader(server, claimIdle=IDLE, failOnDataLoss="false")
    assert read(lenient, start, end) == [2, 3, 4]
    assert lenient.reportLatestOffset()["lost"] == {"s": 2}


@pytest.mark.parametrize("committed", [False, True], ids=["the next batch is replayed", "it is committed"])
def test_a_claim_is_settled_before_the_next_batch_is_logged(
    server: Server, client: redis.Redis, group: str, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """A crash cuts off what goes on beside the next batch: the run after it must not find the claim."""
    add(client, 4)
    left_by_bob(client, 2)
    crashed = reader(server, claimIdle=IDLE)
    start = crashed.initialOffset()
    first = crashed.latestOffset(start, TWO)
    assert read(crashed, start, first) == [0, 1]
    left_by_bob(client, 2)
    monkeypatch.setattr(crashed.batches.worker, "submit", lambda job: None)
    second = crashed.latestOffset(first, TWO)
    again = reader(server, claimIdle=IDLE)
    if not committed:
        assert read(again, first, second) == [2, 3]
    assert drain(again, start=second) == []
    assert consumers(client) == {"bob": 0, "spark": 0}


def test_a_claim_that_takes_nothing_leaves_no_consumer(
    server: Server, client: redis.Redis, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entries are dead, or another client was quicker."""
    add(client, 4)
    ids = left_by_bob(client, 2)
    one = reader(server, claimIdle=IDLE, maxDeliveries="1", deadLetterStream="dead")
    assert drain(one, 2) == [[2, 3]]
    assert client.xlen("dead") == 2
    assert consumers(client) == {"bob": 0, "spark": 0}
    add(client, 2)
    ids = left_by_bob(client, 2)
    honest = claim.transact

    def quicker(*given: Any) -> Any:
        client.xack("s", "g", *ids)
        return honest(*given)

    monkeypatch.setattr(claim, "transact", quicker)
    assert drain(reader(server, claimIdle=IDLE), 2) == []
    assert consumers(client) == {"bob": 0, "spark": 0}


def test_entries_that_were_deleted_before_they_could_be_claimed_are_an_error_or_counted(
    server: Server, client: redis.Redis, group: str
) -> None:
    """The server drops them from the pending list when they are claimed. A strict query claims nothing."""
    ids = add(client, 8)
    left_by_bob(client, 4)
    client.xdel("s", ids[1], ids[2])
    at = reader(server).initialOffset()
    for _ in range(2):
        strict = reader(server, claimIdle=IDLE)
        with pytest.raises(DataLossError, match="2 entries above .* that other consumers of group 'g' had left"):
            strict.latestOffset(at, ALL)
        assert consumers(client) == {"bob": 4, "spark": 0}
        stop_all()
    lenient = reader(server, claimIdle=IDLE, failOnDataLoss="false")
    assert drain(lenient, 4, at) == [[0, 3, 4, 5], [6, 7]]
    assert lenient.reportLatestOffset()["lost"] == {"s": 2}
    assert consumers(client) == {"bob": 0, "spark": 0}


def test_entries_that_are_deleted_between_the_look_and_the_claim_are_counted(
    server: Server, client: redis.Redis, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = add(client, 8)
    left_by_bob(client, 4)
    honest = claim.transact

    def too_late(*given: Any) -> Any:
        client.xdel("s", ids[1], ids[2])
        return honest(*given)

    monkeypatch.setattr(claim, "transact", too_late)
    lenient = reader(server, claimIdle=IDLE, failOnDataLoss="false")
    assert drain(lenient) == [[0, 3, 4, 5, 6, 7]]
    assert lenient.reportLatestOffset()["lost"] == {"s": 2}


def test_deleted_entries_are_counted_also_if_the_reply_to_their_claim_is_lost(
    server: Server, client: redis.Redis, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = add(client, 8)
    left_by_bob(client, 4)
    client.xdel("s", ids[1], ids[2])
    honest = claim.transact

    def unheard(*given: Any) -> Any:
        monkeypatch.setattr(claim, "transact", honest)
        honest(*given)
        raise ServerUnreachableError("its reply is lost")

    monkeypatch.setattr(claim, "transact", unheard)
    lenient = reader(server, claimIdle=IDLE, failOnDataLoss="false")
    assert drain(lenient) == [[0, 3, 4, 5, 6, 7]]
    assert lenient.reportLatestOffset()["lost"] == {"s": 2}


# -- in stream order ------------------------------------------------------------------------------------------------


def give(client: redis.Redis, *consumers: str) -> None:
    """One entry for each, in turn."""
    for consumer in consumers:
        client.xreadgroup("g", consumer, {"s": ">"}, count=1)


def test_claimed_entries_come_before_new_ones_where_a_stream_is_ordered(
    server: Server, client: redis.Redis, group: str
) -> None:
    add(client, 12)
    left_by_bob(client, 4)
    crashed = reader(server, claimIdle=IDLE, ordered="true")
    start = crashed.initialOffset()
    end = crashed.latestOffset(start, ALL)
    assert read(crashed, start, end) == list(range(12))
    assert read(reader(server, claimIdle=IDLE, ordered="true"), start, end) == list(range(12))


@pytest.mark.parametrize("options", [{}], ids=str)
def test_claimed_entries_above_the_position_and_others_come_in_stream_order(
    server: Server, client: redis.Redis, group: str, options: dict[str, str]
) -> None:
    """Entries of several dead consumers, of claims that were not logged, and of the query itself, in turn. Another run
    reads them in the same order."""
    ordered = {"ordered": "true", "claimIdle": IDLE}
    start = reader(server, **ordered).initialOffset()
    add(client, 90)
    give(client, *["bob", "carl"] * 5)
    time.sleep(0.08)
    reader(server, **ordered).latestOffset(start, ReadMaxRows(6))  # a claim of 0 … 5, or of some of both
    give(client, *["dora", "spark", "bob", "spark", "spark"] * 8)
    time.sleep(0.08)
    if options:
        ordered = {"ordered": "true", **options}
    one = reader(server, WITH_COUNT, **ordered)
    found, at = [], start
    while (end := one.latestOffset(at, ALL)) != at:
        batch = rows(one, at, end)
        if not options:
            assert rows(reader(server, WITH_COUNT, **ordered), at, end) == batch
            one = reader(server, WITH_COUNT, **ordered)
        numbers = [row["n"] for row in batch]
        assert numbers == sorted(numbers)
        found.append(sorted(numbers))
        at = end
    if not options:
        assert found == [list(range(50)), list(range(50, 90))]
        assert pending_count(client) == 0


def test_missing_entries_of_several_claims_are_all_counted(server: Server, client: redis.Redis, group: str) -> None:
    """When they are claimed, and when they are read: of two dead consumers, and of two claims on one stream."""
    ids = add(client, 30)
    for consumer in ("bob", "carl"):
        client.xreadgroup("g", consumer, {"s": ">"}, count=5)
    time.sleep(0.08)
    client.xdel("s", ids[0], ids[1], ids[7], ids[8], ids[9])
    lenient = {"claimIdle": IDLE, "failOnDataLoss": "false"}
    one = reader(server, **lenient)
    start = one.initialOffset()
    one.latestOffset(start, ReadMaxRows(10))
    assert one.reportLatestOffset()["lost"] == {"s": 5}
    left_by_bob(client, 5)
    one = reader(server, **lenient)  # the first claim is in no offset
    end = one.latestOffset(start, ReadMaxRows(10))
    assert Offset.from_json(end).held == 10
    client.xdel("s", ids[2], ids[10], ids[11])
    assert sorted(read(one, start, end)) == [3, 4, 5, 6, 12, 13, 14]
    one.latestOffset(end, ALL)
    assert one.reportLatestOffset()["lost"] == {"s": 3}
