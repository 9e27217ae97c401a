"""Entries that XNACK released: taken at once, once, counted for maxDeliveries, and dead letters if they are fatal."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.errors import DataLossError, GroupSharedError
from spark_streams.connector.source.group import snapshot as group_state
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import (
    ALL,
    NEVER_AHEAD,
    SCHEMA,
    SMALL,
    add,
    another_reader,
    begin,
    drain,
    pending_count,
    read,
    reader,
    rows,
    stop_all,
)
from tools.servers.server import Server, skip_without_xnack

WITH_COUNT = SCHEMA.append(pa.field("_deliveries", pa.int64()))
LETTERS = {"maxDeliveries": "3", "deadLetterStream": "dead"}


@pytest.fixture
def ids(server: Server, client: redis.Redis) -> list[str]:
    """Ten entries of stream s, of which bob was given four in group g."""
    skip_without_xnack(client)
    client.xgroup_create("s", "g", id="0", mkstream=True)
    found = add(client, 10)
    client.xreadgroup("g", "bob", {"s": ">"}, count=4)
    return found


def release(client: redis.Redis, *ids: str, mode: str = "FAIL") -> None:
    assert client.execute_command("XNACK", "s", "g", mode, "IDS", len(ids), *ids) == len(ids)


def consumers(client: redis.Redis) -> dict[str, int]:
    return {one["name"]: one["pending"] for one in client.xinfo_consumers("s", "g")}


def test_released_entries_are_taken_at_once_and_once(server: Server, client: redis.Redis, ids: list[str]) -> None:
    """Without claimIdle. SILENT takes a delivery back, FAIL keeps it."""
    release(client, *ids[:2], mode="SILENT")
    release(client, ids[2])
    one = reader(server, WITH_COUNT)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert {row["n"]: row["_deliveries"] for row in rows(one, start, end)} == {
        **{0: 1, 1: 1, 2: 2},
        **dict.fromkeys(range(4, 10), 1),
    }
    assert one.latestOffset(end, ALL) == end
    assert consumers(client) == {"bob": 1, "spark": 0}
    assert one.reportLatestOffset()["claimed"] == {"s": 3}


def test_they_are_taken_while_the_query_runs_and_as_claims_are_with_claim_idle(
    server: Server, client: redis.Redis, ids: list[str]
) -> None:
    one = reader(server, claimIdle="1h")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    release(client, *ids[:3])
    last = one.latestOffset(end, ALL)
    assert read(one, end, last) == [0, 1, 2]
    assert one.latestOffset(last, ALL) == last
    assert consumers(client) == {"bob": 1, "spark": 0}


def test_a_batch_with_released_entries_is_the_same_after_a_crash(
    server: Server, client: redis.Redis, ids: list[str]
) -> None:
    release(client, *ids[:4])
    crashed = reader(server)
    start = crashed.initialOffset()
    end = crashed.latestOffset(start, ReadMaxRows(7))
    held = read(crashed, start, end)
    assert sorted(held) == list(range(7))
    again = reader(server)
    assert read(again, start, end) == held
    assert drain(again, start=end) == [[7, 8, 9]]
    assert consumers(client) == {"bob": 0, "spark": 0}


def test_what_was_taken_and_not_logged_is_the_next_batch(server: Server, client: redis.Redis, ids: list[str]) -> None:
    release(client, *ids[:4])
    crashed = reader(server)
    start = begin(crashed)
    crashed.latestOffset(start, ReadMaxRows(4))
    assert drain(reader(server), start=start) == [[*range(10)]]
    assert pending_count(client) == 0


def test_released_entries_keep_to_the_limit_and_cross_pages(server: Server, client: redis.Redis) -> None:
    skip_without_xnack(client)
    client.xgroup_create("s", "g", id="0", mkstream=True)
    all_of_them = add(client, 100)
    client.xreadgroup("g", "bob", {"s": ">"}, count=50)
    release(client, *all_of_them[:50])
    batches = drain(reader(server, limits=replace(SMALL, claim_page=9)), 30)
    assert [len(batch) for batch in batches] == [30, 30, 30, 10]
    assert sorted(n for batch in batches for n in batch) == list(range(100))
    assert pending_count(client) == 0


def test_a_batch_that_was_reserved_ahead_goes_first(server: Server, client: redis.Redis, ids: list[str]) -> None:
    """The limit holds, and all are read."""
    client.xgroup_delconsumer("s", "g", "bob")
    add(client, 20, first=10)
    one = reader(server)
    two = ReadMaxRows(2)
    at = one.initialOffset()
    end = one.latestOffset(at, two)
    one.batches.worker.wait()  # the second batch is reserved
    assert read(one, at, end) == [4, 5]
    client.xgroup_createconsumer("s", "g", "bob")
    client.xclaim("s", "g", "bob", 0, ids[:3], force=True)
    release(client, *ids[:3])
    found = []
    for _ in range(3):
        at, end = end, one.latestOffset(end, two)
        found.append(read(one, at, end))
    assert sorted(n for batch in found for n in batch) == [0, 1, 2, 6, 7]
    assert max(len(batch) for batch in found) == 2


def test_released_too_often_is_a_dead_letter(server: Server, client: redis.Redis, ids: list[str]) -> None:
    client.xclaim("s", "g", "bob", 0, ids[:1], retrycount=3)
    release(client, *ids[:2])
    one = reader(server, **LETTERS)
    assert drain(one) == [[1, *range(4, 10)]]
    [(_, letter)] = client.xrange("dead")
    told = {name: letter[f"dl.{name}"] for name in ("id", "consumer", "reason", "deliveries", "message")}
    assert told == {
        "id": ids[0],
        "consumer": "",
        "reason": "deliveries",
        "deliveries": "3",
        "message": "delivered 3 times and not acknowledged",
    }
    assert one.reportLatestOffset()["dead"] == {"s": 1}
    assert consumers(client) == {"bob": 2, "spark": 0}


@pytest.mark.parametrize("options", [LETTERS, {"mode": "DEADLETTER", "deadLetterStream": "dead"}], ids=["most", "mode"])
def test_a_fatal_entry_is_a_dead_letter(
    server: Server, client: redis.Redis, ids: list[str], options: dict[str, str]
) -> None:
    """With a dead-letter stream, whatever that was set up for; a dead consumer that had claimed one changes nothing."""
    release(client, *ids[:2], mode="FATAL")
    client.xclaim("s", "g", "eve", 0, ids[1:2])
    time.sleep(0.05)
    one = reader(server, **options, claimIdle="30ms")
    assert drain(one) == [[2, 3, *range(4, 10)]]
    letters = [letter for _, letter in client.xrange("dead")]
    assert [(one["dl.id"], one["dl.consumer"], one["dl.reason"]) for one in letters] == [
        (ids[0], "", "fatal"),
        (ids[1], "eve", "fatal"),
    ]
    assert {one["dl.message"] for one in letters} == {"marked as fatal (XNACK FATAL)"}
    assert pending_count(client) == 0


def test_a_fatal_entry_without_a_dead_letter_stream_stays_pending_and_is_named_once(
    server: Server, client: redis.Redis, ids: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody reads it, and the others are read. A run that has a dead-letter stream takes it."""
    release(client, *ids[:2], mode="FATAL")
    release(client, ids[2])
    with caplog.at_level(logging.WARNING, "spark_streams.source"):
        one = reader(server, limits=replace(SMALL, claim_page=1))
        at = begin(one)
        for expected in ([2, *range(4, 10)], []):
            end = one.latestOffset(at, ALL)
            assert read(one, at, end) == expected
            at = end
    said = [record.getMessage() for record in caplog.records if "XNACK FATAL" in record.getMessage()]
    assert len(said) == 2  # one for each page
    assert "no deadLetterStream. They stay pending" in said[0]
    assert "To list them: rstream pending s --group=g --entries=20. " in said[0]
    assert pending_count(client) == 3
    assert drain(reader(server, **LETTERS), start=at) == []
    assert client.xlen("dead") == 2


def test_two_queries_of_a_group_take_each_released_entry_once(
    server: Server, client: redis.Redis, ids: list[str]
) -> None:
    release(client, *ids[:4])
    one, two = (another_reader(server, limits=NEVER_AHEAD, consumer=name) for name in ("one", "two"))
    offsets = [each.initialOffset() for each in (one, two)]
    ends = [each.latestOffset(at, ReadMaxRows(3)) for each, at in zip((one, two), offsets, strict=True)]
    found = [read(each, at, end) for each, at, end in zip((one, two), offsets, ends, strict=True)]
    assert [sorted(batch) for batch in found] == [[0, 1, 2], [3, 4, 5]]


def test_a_query_without_a_pending_list_refuses_a_group_with_released_entries(
    server: Server, client: redis.Redis, ids: list[str]
) -> None:
    release(client, *ids[:4])
    client.xgroup_delconsumer("s", "g", "bob")
    one = reader(server, noAck="true")
    with pytest.raises(GroupSharedError, match="4 entries of group 'g' were released .* Run it once without noAck"):
        one.latestOffset(begin(one), ALL)
    assert drain(reader(server)) == [[*range(10)]]
    assert drain(reader(server, noAck="true")) == []


@pytest.mark.parametrize("letters", [True, False], ids=["deadLetterStream", "without"])
def test_the_remedy_beside_fatal_entries_needs_a_dead_letter_stream(
    server: Server, client: redis.Redis, ids: list[str], letters: bool
) -> None:
    """As the error says: without deadLetterStream, fatal entries stay pending, and noAck refuses them again."""
    client.execute_command("XNACK", "s", "g", "FATAL", "IDS", 2, *ids[:2])
    client.xgroup_delconsumer("s", "g", "bob")
    match = "with options deadLetterStream and maxDeliveries=100: it reads them, and fatal ones .* become dead letters"
    one = reader(server, noAck="true")
    with pytest.raises(GroupSharedError, match=match):
        one.latestOffset(begin(one), ALL)
    drain(reader(server, **({"deadLetterStream": "dead", "maxDeliveries": "100"} if letters else {})))
    again = reader(server, noAck="true")
    if letters:
        assert drain(again) == []
        assert client.xlen("dead") == 2
    else:
        with pytest.raises(GroupSharedError, match=match):
            again.latestOffset(begin(again), ALL)


def test_released_entries_that_were_deleted_are_an_error_or_counted(
    server: Server, client: redis.Redis, ids: list[str]
) -> None:
    release(client, *ids[:4])
    client.xdel("s", ids[0])
    at = begin(reader(server))
    for _ in range(2):
        with pytest.raises(DataLossError, match="1 entry above .* that other consumers of group 'g' had left pending"):
            reader(server).latestOffset(at, ALL)
        stop_all()
    lenient = reader(server, failOnDataLoss="false")
    assert drain(lenient, start=at) == [[1, 2, 3, *range(4, 10)]]
    assert lenient.reportLatestOffset()["lost"] == {"s": 1}


def test_a_trigger_without_released_entries_asks_nothing_more(server: Server, client: redis.Redis) -> None:
    """Also if others hold entries: the look at the group says that none is released."""
    client.xgroup_create("s", "g", id="0", mkstream=True)
    add(client, 10)
    client.xreadgroup("g", "bob", {"s": ">"}, count=4)
    one = reader(server)
    at = one.latestOffset(one.initialOffset(), ALL)
    one.commit(at)
    assert one.latestOffset(at, ALL) == at

    def calls() -> dict[str, int]:
        told = client.info("commandstats")
        return {name: one["calls"] for name, one in told.items() if name.startswith("cmdstat_x")}

    before = calls()
    assert one.latestOffset(at, ALL) == at
    after = calls()
    assert {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)} == {
        "cmdstat_xinfo|stream": 1,
        "cmdstat_xinfo|groups": 1,
        "cmdstat_xinfo|consumers": 1,
    }


def test_an_acknowledgement_between_two_replies_is_taken_for_no_released_entry(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XINFO GROUPS and XINFO CONSUMERS are not answered at one moment: XPENDING has the last word."""
    client.xgroup_create("s", "g", id="0", mkstream=True)
    add(client, 10)
    client.xreadgroup("g", "bob", {"s": ">"}, count=4)
    honest = group_state._read_group_state

    def amid(*given: Any) -> Any:
        state = honest(*given)
        return None if state is None else state._replace(released=3)

    monkeypatch.setattr(group_state, "_read_group_state", amid)
    assert drain(reader(server)) == [list(range(4, 10))]
    assert consumers(client) == {"bob": 4, "spark": 0}
