"""maxEntriesPerTrigger by stream, maxBytesPerTrigger, and where streams begin, by stream or pattern."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import (
    ALL,
    NEVER_AHEAD,
    SMALL,
    add,
    another_reader,
    begin,
    drain,
    pending_count,
    positions,
    read,
    reader,
    rows,
)
from tools.servers.server import Server

WIDE = pa.schema([("n", pa.int64()), ("text", pa.string()), ("_stream", pa.string())])
LIMITS = (SMALL, NEVER_AHEAD)


def batches(one: StreamReader, at: dict[str, Any] | None = None) -> list[list[dict[str, object]]]:
    """All batches from `at` or the start, committed one after the other."""
    found: list[list[dict[str, object]]] = []
    at = one.initialOffset() if at is None else at
    while (end := one.latestOffset(at, ALL)) != at:
        found.append(rows(one, at, end))
        one.commit(end)
        at = end
    return found


def counted(batch: list[dict[str, object]]) -> Counter[object]:
    return Counter(row["_stream"] for row in batch)


def wide(client: redis.Redis, sizes: list[int], stream: str = "s") -> None:
    """Entries whose names and values have so many bytes: `n` and `text` are 5, a number of three digits another 3."""
    pipe = client.pipeline(transaction=False)
    for n, size in enumerate(sizes, 100):
        pipe.xadd(stream, {"n": n, "text": "x" * (size - 8)})
    pipe.execute()


def bytes_of(batch: list[dict[str, object]]) -> int:
    return sum(8 + len(str(row["text"])) for row in batch)


@pytest.mark.parametrize("limits", LIMITS, ids=["ahead", "never ahead"])
def test_each_stream_has_a_limit_of_its_own_and_others_have_none(server: Server, limits: object) -> None:
    with server.client() as client:
        for stream in ("orders", "audit:a", "audit:b", "rest"):
            add(client, 100, stream)
    most = json.dumps({"orders": 40, "audit:*": 15})
    one = reader(server, limits=limits, streams="orders,audit:a,audit:b,rest", maxEntriesPerTrigger=most)  # type: ignore[arg-type]
    found = [counted(batch) for batch in batches(one)]
    assert found[0] == {"orders": 40, "audit:a": 15, "audit:b": 15, "rest": 100}
    assert found[2] == {"orders": 20, "audit:a": 15, "audit:b": 15}
    assert len(found) == 7
    assert sum(found, Counter()) == dict.fromkeys(("orders", "audit:a", "audit:b", "rest"), 100)


def test_streams_that_a_pattern_finds_later_have_its_limit(server: Server) -> None:
    with server.client() as client:
        add(client, 30, "o:1")
        one = reader(
            server,
            limits=replace(NEVER_AHEAD, pattern_interval=0.0, pattern_interval_each=0.0),
            streamsPattern="o:*",
            maxEntriesPerTrigger='{"o:2": 5, "o:*": 20}',
        )
        first = one.initialOffset()
        end = one.latestOffset(first, ALL)
        assert counted(rows(one, first, end)) == {"o:1": 20}
        add(client, 30, "o:2")
        last = one.latestOffset(end, ALL)
        assert counted(rows(one, end, last)) == {"o:1": 10, "o:2": 5}


def test_a_pattern_with_many_streams_is_searched_less_often(server: Server) -> None:
    """Two streams, a second each: a search after two seconds."""
    clock = [0.0]
    limits = replace(NEVER_AHEAD, pattern_interval=0.0, pattern_interval_each=1.0)
    with server.client() as client:
        add(client, 1, "o:1")
        add(client, 1, "o:2")
        one = reader(server, limits=limits, now=lambda: clock[0], streamsPattern="o:*")
        at = one.latestOffset(one.initialOffset(), ALL)
        add(client, 1, "o:3")
        clock[0] += 1.9
        assert one.latestOffset(at, ALL) == at
        clock[0] += 0.2
        assert counted(rows(one, at, one.latestOffset(at, ALL))) == {"o:3": 1}


def test_what_a_crash_left_and_what_is_claimed_count_against_a_streams_limit(server: Server) -> None:
    with server.client() as client:
        add(client, 60, "a")
        add(client, 60, "b")
        one = reader(server, limits=NEVER_AHEAD, streams="a,b")
        one.latestOffset(one.initialOffset(), ALL)  # and dies: 120 pending, nothing logged
        again = reader(server, limits=NEVER_AHEAD, streams="a,b", maxEntriesPerTrigger='{"a": 25}')
        found = [counted(batch) for batch in batches(again)]
        assert found == [{"a": 25, "b": 60}, {"a": 25}, {"a": 10}]
        add(client, 50, "a")
        client.xreadgroup("g", "dead", {"a": ">"}, count=40)
        options = {"maxEntriesPerTrigger": '{"a": 25}', "claimIdle": "1ms", "consumer": "heir"}
        third = another_reader(server, limits=NEVER_AHEAD, streams="a,b", **options)
        at = third.initialOffset()
        end = third.latestOffset(at, ALL)
        assert counted(rows(third, at, end)) == {"a": 25}
        last = third.latestOffset(end, ALL)
        assert counted(rows(third, end, last)) == {"a": 25}  # 15 that were claimed, and the 10 that are new


@pytest.mark.parametrize(("most", "step", "sizes"), [(1, 1, [1] * 6), (3, 1, [3, 3]), (3, 3, [3, 3])])
def test_entries_that_a_group_delivers_again_count_against_the_limit(
    server: Server, most: int, step: int, sizes: list[int]
) -> None:
    """They were reserved by a run that died, and the group was set back: its pending list does not grow by them."""
    with server.client() as client:
        add(client, 8)
        one = reader(server, limits=NEVER_AHEAD)
        at = one.initialOffset()
        end = one.latestOffset(at, ReadMaxRows(2))
        assert read(one, at, end) == [0, 1]
        one.latestOffset(end, ReadMaxRows(2))  # and dies
        client.xgroup_setid("s", "g", positions(end)["s"], entries_read=2)
        again = reader(server, limits=replace(NEVER_AHEAD, reserve_step=step, reserve_round=3))
        found = drain(again, most, end)
    assert [n for batch in found for n in batch] == [*range(2, 8)]
    assert [len(batch) for batch in found] == sizes


@pytest.mark.parametrize("limits", LIMITS, ids=["ahead", "never ahead"])
@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=["acked", "noAck"])
def test_batches_of_entries_that_are_alike_have_the_bytes_asked_for(
    server: Server, options: dict[str, str], limits: object
) -> None:
    with server.client() as client:
        wide(client, [100] * 250)
    found = batches(reader(server, WIDE, limits=limits, maxBytesPerTrigger="10000", **options))  # type: ignore[arg-type]
    assert [row["n"] for batch in found for row in batch] == list(range(100, 350))
    assert [len(batch) for batch in found] == [100, 100, 50]


@pytest.mark.parametrize("limits", LIMITS, ids=["ahead", "never ahead"])
@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=["acked", "noAck"])
def test_batches_behind_the_one_in_which_entries_become_larger_have_the_bytes_asked_for(
    server: Server, options: dict[str, str], limits: object
) -> None:
    """By its sample, a batch has 1,000 entries. The one that begins with small entries has large ones, too."""
    with server.client() as client:
        wide(client, [10] * 1_500 + [5_000] * 520)
    batch_list = batches(reader(server, WIDE, limits=limits, maxBytesPerTrigger="10000", **options))  # type: ignore[arg-type]
    assert [row["n"] for batch in batch_list for row in batch] == list(range(100, 2_120))
    sizes = [len(batch) for batch in batch_list]
    assert sizes[:2] == [1_000, 910]  # numbers have a fourth digit in the second one
    assert {*sizes[2:]} == {2}


@pytest.mark.parametrize("limits", LIMITS, ids=["ahead", "never ahead"])
@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=["acked", "noAck"])
def test_entries_that_become_smaller_fill_the_batches_after_that(
    server: Server, options: dict[str, str], limits: object
) -> None:
    with server.client() as client:
        wide(client, [5_000] * 4 + [20] * 750)
    found = batches(reader(server, WIDE, limits=limits, maxBytesPerTrigger="10000", **options))  # type: ignore[arg-type]
    assert [row["n"] for batch in found for row in batch] == list(range(100, 100 + 4 + 750))
    # What is reserved ahead has the average of the batch before it.
    is_ahead = limits is SMALL and not options
    assert [len(batch) for batch in found] == ([2, 2, 500, 250] if is_ahead else [2, 3, 500, 249])


def test_one_byte_takes_an_entry_a_batch(server: Server) -> None:
    """Of each stream in its turn."""
    with server.client() as client:
        wide(client, [10, 70_000, 10], "a")
        wide(client, [1_000] * 3, "b")
    found = batches(reader(server, WIDE, limits=NEVER_AHEAD, streams="a,b", maxBytesPerTrigger="1"))
    assert [len(batch) for batch in found] == [1] * 6
    assert sum(map(counted, found), Counter()) == {"a": 3, "b": 3}


def test_streams_in_shards_share_a_limit_of_bytes(server: Server) -> None:
    with server.client() as client:
        one = reader(server, WIDE, limits=NEVER_AHEAD, shards="4", maxBytesPerTrigger="12000")
        at = begin(one)
        shards = [key.decode() for key in client.scan_iter(_type="stream")]
        for shard in shards:
            wide(client, [1_000] * 10, shard)
    assert len(shards) == 4
    found = batches(one, at)
    assert [len(batch) for batch in found] == [12, 12, 12, 4]
    assert set(counted(found[0]).values()) == {3}


@pytest.mark.parametrize("limits", LIMITS, ids=["ahead", "never ahead"])
@pytest.mark.parametrize("most", ["25", '{"s": 25}'])
def test_limits_of_bytes_and_of_entries_hold_together(server: Server, most: str, limits: object) -> None:
    with server.client() as client:
        wide(client, [10] * 100 + [1_000] * 100)
    options = {"maxBytesPerTrigger": "10000", "maxEntriesPerTrigger": most}
    one = reader(server, WIDE, limits=limits, **options)  # type: ignore[arg-type]
    at, found = one.initialOffset(), []
    while (end := one.latestOffset(at, one.getDefaultReadLimit())) != at:
        found.append(rows(one, at, end))
        one.commit(end)
        at = end
    assert [row["n"] for batch in found for row in batch] == list(range(100, 300))
    assert [len(batch) for batch in found[:4]] == [25] * 4
    assert {len(batch) for batch in found[4:]} == {10}


def test_bytes_are_shared_between_streams_and_nobody_starves(server: Server) -> None:
    with server.client() as client:
        wide(client, [1_000] * 60, "small")
        wide(client, [1_000] * 60, "other")
        wide(client, [30_000] * 4, "large")  # each of these larger than the whole limit
    one = reader(
        server,
        WIDE,
        limits=NEVER_AHEAD,
        streams="small,other,large",
        maxBytesPerTrigger="20kb",
    )
    found = batches(one)
    assert sum(map(counted, found), Counter()) == {"small": 60, "other": 60, "large": 4}
    assert all(bytes_of(batch) <= (20 << 10) + 30_000 for batch in found)
    assert any(counted(batch)["large"] for batch in found[:3])


def test_what_a_crash_left_is_cut_by_bytes_too_and_read_once(server: Server) -> None:
    with server.client() as client:
        wide(client, [1_000] * 50, "a")
        wide(client, [1_000] * 50, "b")
        one = reader(server, WIDE, limits=NEVER_AHEAD, streams="a,b")
        one.latestOffset(one.initialOffset(), ALL)
        again = reader(server, WIDE, limits=NEVER_AHEAD, streams="a,b", maxBytesPerTrigger="30000")
        found = batches(again)
        assert sum(map(counted, found), Counter()) == {"a": 50, "b": 50}
        assert max(map(bytes_of, found)) <= 30_000
        assert len(found) == 4
        assert pending_count(client, "a") == pending_count(client, "b") == 0


def test_what_is_claimed_is_cut_by_bytes_too(server: Server) -> None:
    with server.client() as client:
        wide(client, [1_000] * 50)
        client.xgroup_create("s", "g", "0")
        client.xreadgroup("g", "dead", {"s": ">"})
        one = reader(server, WIDE, limits=NEVER_AHEAD, maxBytesPerTrigger="15000", claimIdle="1ms")
        found = batches(one)
        assert [len(batch) for batch in found] == [15, 15, 15, 5]
        assert pending_count(client) == 0


@pytest.mark.parametrize("limits", LIMITS, ids=["ahead", "never ahead"])
@pytest.mark.parametrize("options", [{}, {"noAck": "true"}], ids=["acked", "noAck"])
def test_entries_above_the_limit_block_nothing_whichever_of_several_streams_they_are_in(
    server: Server, options: dict[str, str], limits: object
) -> None:
    """Others of several streams are above a stream's part of the limit, and fit in beside what the rest takes."""
    with server.client() as client:
        wide(client, [100] * 30 + [7_000] + [100] * 30 + [15_000, 15_000], "a")
        wide(client, [9_000, 100, 100, 15_000] * 5 + [100] * 400, "b")
        wide(client, [500] * 200, "c")
    given = {"streams": "a,b,c", "maxBytesPerTrigger": "10000", **options}
    found = batches(reader(server, WIDE, limits=limits, **given))  # type: ignore[arg-type]
    assert sum(map(counted, found), Counter()) == {"a": 63, "b": 420, "c": 200}
    for stream in "abc":
        numbers = [row["n"] for batch in found for row in batch if row["_stream"] == stream]
        assert numbers == sorted(numbers)
    assert len(found) > 9


def test_an_entry_above_the_limit_among_claimed_ones_blocks_nothing(server: Server) -> None:
    """New behind claimed ones, claimed behind claimed ones of another consumer, and first among them."""
    with server.client() as client:
        wide(client, [1_000] * 3 + [1_000, 15_000, 1_000] + [15_000] + [15_000, 1_000, 1_000])
        client.xgroup_create("s", "g", "0")
        for consumer, count in (("ann", 3), ("bob", 3), ("eve", 1)):
            client.xreadgroup("g", consumer, {"s": ">"}, count=count)
        found = batches(reader(server, WIDE, limits=NEVER_AHEAD, maxBytesPerTrigger="10000", claimIdle="1ms"))
        assert sorted(row["n"] for batch in found for row in batch) == list(range(100, 110))  # type: ignore[type-var]
        assert max(map(len, found)) == 2  # their average is 5,200 bytes
        assert pending_count(client) == 0


def test_an_entry_above_the_limit_that_a_crash_left_blocks_nothing(server: Server) -> None:
    """Reserved by a run that died, and claimed by one."""
    sizes = [1_000, 15_000, 1_000, 0 + 8]
    with server.client() as client:
        wide(client, sizes, "a")
        wide(client, [15_000, 1_000], "b")
        wide(client, sizes, "dead")
        client.xgroup_create("dead", "g", "0")
        client.xreadgroup("g", "bob", {"dead": ">"})
        streams = {"streams": "a,b,dead"}
        one = reader(server, WIDE, limits=NEVER_AHEAD, claimIdle="1ms", maxBytesPerTrigger="100000", **streams)
        at = one.initialOffset()
        one.latestOffset(at, ALL)
        again = reader(server, WIDE, limits=NEVER_AHEAD, maxBytesPerTrigger="10000", **streams)
        found = batches(again)
        assert sum(map(counted, found), Counter()) == {"a": 4, "b": 2, "dead": 4}
        assert len(found) > 2
        assert all(pending_count(client, stream) == 0 for stream in ("a", "b", "dead"))


def test_what_was_handed_to_the_query_is_cut_by_bytes_too(server: Server) -> None:
    with server.client() as client:
        wide(client, [1_000] * 6 + [15_000] + [1_000] * 15)
        one = reader(server, WIDE, limits=NEVER_AHEAD)
        at = one.initialOffset()
        end = one.latestOffset(at, ALL)
        one.commit(end)
        ids = [entry for entry, _ in client.xrange("s")]
        client.xclaim("s", "g", "spark", 0, ids, force=True)
        wide(client, [1_000] * 2)
        one = reader(server, WIDE, limits=NEVER_AHEAD, maxBytesPerTrigger="10000")
        found = batches(one, end)
        # The sample has three entries of 1,000: as many as ten of these are taken, one of which is larger.
        assert [bytes_of(batch) for batch in found] == [24_000, 10_000, 4_000]
        assert pending_count(client) == 0
        assert [consumer["name"] for consumer in client.xinfo_consumers("s", "g")] == [b"spark"]


def test_in_a_group_that_others_read_from_bytes_are_those_of_our_entries(server: Server) -> None:
    with server.client() as client:
        wide(client, [1_000] * 40)
        one = reader(server, WIDE, limits=NEVER_AHEAD, maxBytesPerTrigger="10000")
        at = begin(one)
        client.xreadgroup("g", "bob", {"s": ">"}, count=5)
        end = one.latestOffset(at, ALL)
        assert [row["n"] for row in rows(one, at, end)] == list(range(105, 115))


def test_deleted_entries_weigh_nothing_and_are_reported(server: Server) -> None:
    with server.client() as client:
        wide(client, [1_000] * 20)
        for entry, _ in client.xrange("s", count=20):
            client.xdel("s", entry)
        one = reader(server, WIDE, limits=NEVER_AHEAD, maxBytesPerTrigger="5000", failOnDataLoss="false")
        at = one.initialOffset()
        end = one.latestOffset(at, ALL)
        assert rows(one, at, end) == []
        wide(client, [1_000] * 7)
        last = one.latestOffset(end, ALL)
        assert len(rows(one, end, last)) == 5


def _ids(client: redis.Redis, stream: str) -> list[str]:
    add(client, 10, stream)
    return [entry.decode() for entry, _ in client.xrange(stream)]


def test_groups_begin_where_their_stream_or_pattern_says(server: Server) -> None:
    with server.client() as client:
        ids = {stream: _ids(client, stream) for stream in ("a", "b:1", "b:2", "c")}
        offsets = json.dumps({"b:2": ids["b:2"][6], "b:*": "earliest", "a": "latest"})
        one = reader(server, limits=NEVER_AHEAD, streams="a,b:1,b:2,c", startingOffsets=offsets)
        found = drain(one)
        assert sorted(found[0]) == sorted([*range(10), 7, 8, 9])
        times = json.dumps({"a": int(ids["a"][0].split("-")[0]), "b:1": "2100-01-01", "*": 0})
        late = reader(server, limits=NEVER_AHEAD, streams="a,b:1,b:2", group="late", startingTimestamp=times)
        at = late.initialOffset()
        end = late.latestOffset(at, ALL)
        assert counted(rows(late, at, end)) == {"a": 10, "b:2": 10}
