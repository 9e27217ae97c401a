"""The batch reader driven as Spark drives it, without Spark, on both servers."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.datasource import RStreamDataSource
from spark_streams.connector.errors import (
    DecodeError,
    SchemaError,
    ServerReplyError,
    StreamMissingError,
    UnsupportedError,
    WrongKeyTypeError,
)
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import BatchReader
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.wire.connection import Connection
from tools.servers.server import Server

SCHEMA = pa.schema([("n", pa.int64()), ("_stream", pa.string()), ("_id", pa.string())])
# Small pages, so that a few hundred entries cross every boundary, and no task is smaller than it was told to be.
SMALL = replace(LIMITS, first_page=20, largest_page=50, smallest_task=1_000_000)


def reader(server: Server, schema: pa.Schema = SCHEMA, **options: str) -> BatchReader:
    checked = BatchSourceOptions.parse({"url": server.url, **options})
    return BatchReader(checked, Columns(schema, True, checked.mode, checked.column_name_of_corrupt_record), SMALL)


def add(client: redis.Redis, ids: list[str], stream: str = "s") -> None:
    pipe = client.pipeline(transaction=False)
    for n, one in enumerate(ids):
        pipe.xadd(stream, {"n": n}, id=one)
    pipe.execute()


def tasks(one: BatchReader) -> list[list[dict[str, Any]]]:
    """Each task's rows; each task with a reader of its own, out of the pickle."""
    found = []
    for partition in one.partitions():
        task, share = pickle.loads(pickle.dumps((one, partition)))
        found.append([row for batch in task.read(share) for row in batch.to_pylist()])
    return found


def rows(server: Server, **options: str) -> list[int]:
    """The column n of all rows, in the order of the tasks."""
    return [row["n"] for task in tasks(reader(server, **options)) for row in task]


def times(count: int) -> list[str]:
    return [f"{1_700_000_000_000 + 1000 * n}-0" for n in range(count)]


def test_a_stream_is_read_in_parallel_whole_and_once(server: Server, client: redis.Redis) -> None:
    add(client, times(500))
    found = tasks(reader(server, streams="s", entriesPerPartition="100"))
    assert 5 <= len(found) <= 7
    assert max(map(len, found)) <= 130
    assert [row["n"] for task in found for row in task] == list(range(500))


def test_rows_have_the_arrow_schema_that_sail_passes(server: Server, client: redis.Redis) -> None:
    """With the session's time zone, and its own name of an array's field. tests/legs/sail has the whole way."""
    client.xadd("s", {"a": '["x"]', "t": "2026-11-28T10:00:00Z"})
    item, berlin = pa.list_(pa.field("item", pa.string())), pa.timestamp("us", "Europe/Berlin")
    form = pa.schema([("a", item), ("t", berlin), ("local", pa.timestamp("us"))])
    options = {"url": server.url, "streams": "s"}
    one: Any = RStreamDataSource(options).reader(form)  # type: ignore[arg-type]
    task, share = pickle.loads(pickle.dumps((one, one.partitions()[0])))
    [batch] = task.read(share)
    assert batch.schema.equals(form)
    assert str(batch.to_pylist()[0]["t"]) == "2026-11-28 11:00:00+01:00"
    with pytest.raises(UnsupportedError, match="Sail has no streaming reader"):
        RStreamDataSource({**options, "group": "g"}).reader(form)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, range(500)),
        ({"startingOffsets": "1700000010000-0"}, range(11, 500)),
        ({"endingOffsets": "1700000010000-0"}, range(11)),
        ({"endingOffsets": "1700000010000"}, range(11)),
        ({"startingTimestamp": "1700000010000"}, range(10, 500)),
        ({"startingTimestamp": "2023-11-14T22:13:30"}, range(10, 500)),
        ({"endingTimestamp": "1700000010000"}, range(10)),
        ({"startingTimestamp": "1700000010000", "endingTimestamp": "1700000490000"}, range(10, 490)),
        ({"startingOffsets": '{"s": "1700000400000"}', "endingOffsets": '{"s": "1700000401000"}'}, range(401, 402)),
        ({"startingOffsets": "1700000499000"}, range(0)),
        ({"startingTimestamp": "1800000000000"}, range(0)),
    ],
    ids=str,
)
def test_offsets_begin_after_an_id_and_end_with_one_and_times_begin_with_one_and_end_before_one(
    server: Server, client: redis.Redis, bounds: dict[str, str], expected: range
) -> None:
    add(client, times(500))
    assert rows(server, streams="s", entriesPerPartition="100", **bounds) == list(expected)


@pytest.mark.parametrize(
    "ids",
    [
        [f"{n + 1}-0" for n in range(300)],
        [f"7-{n + 1}" for n in range(300)],
        [f"{7 + n // 150}-{n}" for n in range(300)],
        ["0-1", "5-5", "18446744073709551615-0", "18446744073709551615-18446744073709551615"],
    ],
    ids=["numbered", "one millisecond", "two milliseconds", "to the end of all ids"],
)
def test_explicit_ids_are_read_whole_and_once(server: Server, client: redis.Redis, ids: list[str]) -> None:
    add(client, ids)
    assert rows(server, streams="s", entriesPerPartition="20") == list(range(len(ids)))


def test_two_milliseconds_become_tasks_by_millisecond_and_one_by_sequence_number(
    server: Server, client: redis.Redis
) -> None:
    add(client, [f"7-{n + 1}" for n in range(300)])
    assert 15 <= len(tasks(reader(server, streams="s", entriesPerPartition="20"))) <= 20


def test_an_entry_that_is_added_after_planning_is_not_read(server: Server, client: redis.Redis) -> None:
    add(client, times(10))
    one = reader(server, streams="s")
    planned = one.partitions()
    client.xadd("s", {"n": 99}, id="1800000000000-0")
    assert [row["n"] for share in planned for batch in one.read(share) for row in batch.to_pylist()] == list(range(10))
    assert rows(server, streams="s")[-1] == 99


def test_a_thousand_small_streams_are_few_tasks_and_few_round_trips(server: Server, client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for stream in range(1000):
        for n in range(3):
            pipe.xadd(f"s{stream:03}", {"n": n}, id=f"{n + 1}-0")
    pipe.execute()
    client.config_resetstat()
    found = tasks(reader(server, streamsPattern="s*", entriesPerPartition="1500"))
    assert len(found) == 2
    sent = commands(client)
    # Each page ends in an ECHO; here a page has 50 entries.
    assert sent["xrange"] <= 1100
    assert sent["echo"] < 80
    assert sorted((row["_stream"], row["n"]) for task in found for row in task) == [
        (f"s{stream:03}", n) for stream in range(1000) for n in range(3)
    ]


def test_small_and_large_streams_of_many_shapes_keep_their_rows_and_names(server: Server, client: redis.Redis) -> None:
    sizes = [1, 0, 70, 3, 49, 50, 51, 2, 400, 16, 17, 15]
    pipe = client.pipeline(transaction=False)
    for stream, size in enumerate(sizes):
        pipe.xgroup_create(f"s{stream}", "g", mkstream=True)
        for n in range(size):
            pipe.xadd(f"s{stream}", {"n": n, "also": "x\r\n" * (n % 3)} if n % 2 else {"n": n}, id=f"{n + 5}-1")
    pipe.execute()
    names = ",".join(f"s{stream}" for stream in range(len(sizes)))
    found = tasks(reader(server, streams=names, entriesPerPartition="150"))
    by_stream: dict[str, list[int]] = {}
    for row in (row for task in found for row in task):
        by_stream.setdefault(row["_stream"], []).append(row["n"])
    assert by_stream == {f"s{stream}": list(range(size)) for stream, size in enumerate(sizes) if size}


def test_ordered_reads_each_stream_in_one_task(server: Server, client: redis.Redis) -> None:
    add(client, times(300), "a")
    add(client, times(200), "b")
    found = tasks(reader(server, streams="a,b", ordered="true"))
    assert sum(len({row["_stream"] for row in task}) for task in found) == 2
    assert [row["n"] for task in found for row in task] == [*range(300), *range(200)]


def test_min_partitions_makes_smaller_tasks(server: Server, client: redis.Redis) -> None:
    add(client, times(300))
    assert len(tasks(reader(server, streams="s"))) == 1
    assert len(tasks(reader(server, streams="s", minPartitions="6"))) >= 6


def test_a_read_touches_no_group(server: Server, client: redis.Redis) -> None:
    add(client, times(300))
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "c", {"s": ">"}, count=100)
    before = client.xinfo_groups("s"), client.xpending("s", "g")
    assert len(rows(server, streams="s", entriesPerPartition="50")) == 300
    assert (client.xinfo_groups("s"), client.xpending("s", "g")) == before


def commands(client: redis.Redis) -> dict[str, int]:
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(one["calls"]) for name, one in stats.items()}


def test_a_time_range_reads_only_its_part_and_nothing_but_reads_is_sent(server: Server, client: redis.Redis) -> None:
    """Of 20,000 entries a range of 100: one look at the stream, one page."""
    add(client, times(20_000))
    one = reader(server, streams="s", startingTimestamp="1700010000000", endingTimestamp="1700010100000")
    client.config_resetstat()
    assert [row["n"] for task in tasks(one) for row in task] == list(range(10_000, 10_100))
    sent = commands(client)
    assert set(sent) <= {"xinfo|stream", "xinfo", "xrange", "echo", "select", "hello", "client|setinfo", "client"} | {
        "config|resetstat", "config", "info", "hgetall", "type", "xlen",
    }  # fmt: skip
    assert sent["xrange"] <= 4


def test_the_plan_takes_a_handful_of_round_trips_whatever_the_bursts(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(
        client,
        sorted({*times(500), *(f"1700000200500-{n}" for n in range(2000))}, key=lambda i: [*map(int, i.split("-"))]),
    )
    trips = []
    execute_each = Connection.execute_each
    monkeypatch.setattr(Connection, "execute_each", lambda *a: trips.append(1) or execute_each(*a))
    one = reader(server, streams="s", entriesPerPartition="500")
    one.partitions()
    assert 2 <= len(trips) <= 7
    assert rows(server, streams="s", entriesPerPartition="500") == list(range(2500))


# -- what cannot be read -----------------------------------------------------------------------------------------------


def test_a_missing_stream_is_named(server: Server, client: redis.Redis) -> None:
    add(client, times(1))
    add(client, times(1), "orders")
    with pytest.raises(
        StreamMissingError, match="stream 'odrers' does not exist at .* \\(did you mean 'orders'\\?\\); check its name"
    ):
        reader(server, streams="s,odrers").partitions()
    assert sorted(client.keys()) == ["orders", "s"]


def test_a_stream_that_has_never_had_an_entry_is_reported(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that waited for a misspelt name has made it."""
    add(client, times(2), "emptied")
    client.xtrim("emptied", maxlen=0, approximate=False)
    add(client, times(1), "orders")
    client.xgroup_create("odrers", "g", mkstream=True)
    assert rows(server, streams="emptied,odrers") == []
    assert caplog.messages == [
        f"stream 'odrers' at {server.url} has never had an entry; nothing is read of it (did you mean 'orders'?)"
    ]


def test_a_pattern_that_matches_nothing_reads_nothing(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, times(1), "orders:1")
    assert rows(server, streamsPattern="odrers:*") == []
    [line] = caplog.messages
    assert line.endswith("matches 'odrers:*' (did you mean 'orders:1'?); nothing is read")


def test_a_pattern_finds_streams_only(server: Server, client: redis.Redis) -> None:
    add(client, times(2), "a:1")
    client.set("a:2", "text")
    assert rows(server, streamsPattern="a:*") == [0, 1]


def test_a_pattern_leaves_out_every_name_of_the_product(server: Server, client: redis.Redis) -> None:
    """Also a stream that somebody else made at a key that the product uses for something else."""
    add(client, times(2), "s")
    for name in ("rstream:delays:{s}:g", "rstream:retry:{s}:g:1", "rstream:returned:{s}:g", "rstream:x"):
        client.xadd(name, {"n": 100})
    assert rows(server, streamsPattern="*") == [0, 1]
    assert rows(server, streamsPattern="rstream:*") == []
    assert rows(server, streams="rstream:x") == [100]


def test_another_kind_of_key_is_named(server: Server, client: redis.Redis) -> None:
    client.set("s", "text")
    with pytest.raises(WrongKeyTypeError, match="key 's'"):
        reader(server, streams="s").partitions()


def test_a_key_that_changes_its_kind_before_it_is_read_is_named(server: Server, client: redis.Redis) -> None:
    add(client, times(3), "a")
    add(client, times(3), "b")
    one = reader(server, streams="a,b")
    (share,) = one.partitions()
    client.delete("b")
    client.set("b", "text")
    with pytest.raises(ServerReplyError, match="XRANGE of 'a', 'b' at .*WRONGTYPE"):
        list(one.read(share))


def test_delivery_counts_are_refused(server: Server) -> None:
    with pytest.raises(SchemaError, match="'_deliveries'.*spark.read has none"):
        reader(server, pa.schema([("_deliveries", pa.int32())]), streams="s")


def test_values_that_do_not_fit_are_treated_by_mode(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": "x"}, id="1-0")
    client.xadd("s", {"n": "1"}, id="2-0")
    assert rows(server, streams="s") == [None, 1]
    assert rows(server, streams="s", mode="DROPMALFORMED") == [1]
    with pytest.raises(DecodeError, match="entry 1-0 of stream 's'"):
        rows(server, streams="s", mode="FAILFAST")
