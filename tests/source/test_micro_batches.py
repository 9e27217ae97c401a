"""A consumer group as micro-batches: the reader driven as Spark drives it, without Spark, on both servers."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_streams.errors import DataLossError, GroupMissingError, StreamStateError, WrongKeyTypeError
from spark_streams.ids import StreamId
from spark_streams.options import SOURCE, parse_options
from spark_streams.source import pending, reserve
from spark_streams.source.columns import Columns
from spark_streams.source.stream_reader import StreamReader
from tests.servers import Server

ALL = ReadAllAvailable()
COLUMNS = Columns(pa.schema([("n", pa.int64()), ("_stream", pa.string()), ("_id", pa.string())]), True, "PERMISSIVE")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small steps and pages, so that a few hundred entries cross every boundary."""
    monkeypatch.setattr(pending, "PAGE", 70)
    monkeypatch.setattr("spark_streams.source.stream_reader.STEP", 30)
    monkeypatch.setattr(reserve, "_STEPS_A_ROUND", 4)
    monkeypatch.setattr("spark_streams.source.read._FIRST_PAGE", 7)


@pytest.fixture
def client(server: Server) -> redis.Redis:
    return server.client(decode_responses=True)


def reader(server: Server, **options: str) -> StreamReader:
    given = {"url": server.url, "streams": "s", "group": "g", "startingOffsets": "earliest", **options}
    return StreamReader(parse_options(given, SOURCE, "source"), COLUMNS)


def add(client: redis.Redis, count: int, stream: str = "s", first: int = 0) -> list[str]:
    pipe = client.pipeline(transaction=False)
    for n in range(first, first + count):
        pipe.xadd(stream, {"n": n})
    return [str(i) for i in pipe.execute()]


def read(one: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The rows of a batch as tasks see them: each task with a reader of its own, out of the pickle."""
    rows: list[int] = []
    for partition in one.partitions(start, end):
        task, share = pickle.loads(pickle.dumps((one, partition)))
        rows += [n for batch in task.read(share) for n in batch.column("n").to_pylist()]
    return rows


def pending_count(client: redis.Redis, stream: str = "s", group: str = "g") -> int:
    return int(client.xpending(stream, group)["pending"])


def test_a_batch_is_read_and_settled_when_the_next_one_is_asked_for(server: Server, client: redis.Redis) -> None:
    add(client, 250)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert pending_count(client) == 250
    assert read(one, start, end) == list(range(250))
    assert one.latestOffset(end, ALL) == end
    assert pending_count(client) == 0
    assert one.reportLatestOffset() == end


def test_batches_keep_to_the_limit_and_follow_each_other(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server)
    at, rows = one.initialOffset(), []
    sizes = []
    while (end := one.latestOffset(at, ReadMaxRows(45))) != at:
        batch = read(one, at, end)
        sizes.append(len(batch))
        rows += batch
        at = end
    assert sizes == [45, 45, 10]
    assert rows == list(range(100))
    assert pending_count(client) == 0


def test_a_batch_is_cut_into_tasks(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server, entriesPerPartition="40")
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert [p.run.count for p in one.partitions(start, end)] == [30, 30, 40]
    assert all(p.run.owned for p in one.partitions(start, end))
    assert one.partitions(end, end) == []


def test_a_restart_with_an_unfinished_batch_reads_the_same_rows(server: Server, client: redis.Redis) -> None:
    """S5: partitions(start, end) comes first after a restart, with the logged offsets."""
    add(client, 200)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(150))
    rows = read(one, start, end)
    add(client, 50, first=200)
    again = reader(server)
    assert read(again, start, end) == rows == list(range(150))
    rest = again.latestOffset(end, ALL)
    assert read(again, end, rest) == list(range(150, 250))
    assert again.latestOffset(rest, ALL) == rest
    assert pending_count(client) == 0


def test_entries_reserved_before_a_crash_come_first(server: Server, client: redis.Redis) -> None:
    """A crash between reserving and logging leaves pending entries above the checkpoint."""
    add(client, 120)
    crashed = reader(server)
    start = crashed.initialOffset()
    crashed.latestOffset(start, ALL)
    add(client, 30, first=120)
    again = reader(server)
    end = again.latestOffset(start, ReadMaxRows(50))
    assert read(again, start, end) == list(range(50))
    rest = again.latestOffset(end, ALL)
    assert read(again, end, rest) == list(range(50, 120))
    last = again.latestOffset(rest, ALL)
    assert read(again, rest, last) == list(range(120, 150))
    again.commit(last)
    assert pending_count(client) == 0


def test_a_crash_in_the_first_batch_starts_at_the_same_place(server: Server, client: redis.Redis) -> None:
    """S2: without a checkpoint the group pins the start, also for `latest`."""
    add(client, 10)
    first = reader(server, startingOffsets="latest")
    start = first.initialOffset()
    add(client, 20, first=10)
    assert first.initialOffset() == start
    first.latestOffset(start, ALL)
    again = reader(server, startingOffsets="latest")
    begin = again.initialOffset()
    end = again.latestOffset(begin, ALL)
    assert read(again, begin, end) == list(range(10, 30))


def test_a_group_that_exists_goes_on_where_it_is(server: Server, client: redis.Redis) -> None:
    ids = add(client, 10)
    client.xgroup_create("s", "g", id=ids[5])
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    assert read(one, start, end) == [6, 7, 8, 9]


def test_another_consumer_of_the_group_takes_its_own_entries(server: Server, client: redis.Redis) -> None:
    """R4: a range that others also read from is read through our own pending list."""
    add(client, 300)
    one = reader(server)
    start = one.initialOffset()
    theirs: list[int] = []

    def take(count: int) -> None:
        for _, entries in client.xreadgroup("g", "other", {"s": ">"}, count=count):
            theirs.extend(int(fields["n"]) for _, fields in entries)

    at, ours = start, []
    take(13)
    while (end := one.latestOffset(at, ReadMaxRows(60))) != at:
        # What was reserved while another read in between: plan it as after a restart too.
        batch = read(one, at, end)
        assert read(reader(server), at, end) == batch
        ours += batch
        take(17)
        at = end
    assert sorted(ours + theirs) == list(range(300))
    assert not set(ours) & set(theirs)
    assert pending_count(client) == len(theirs)


def test_a_range_read_by_others_between_our_steps_is_not_owned(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(client, 100)
    one = reader(server)
    start = one.initialOffset()
    # Between looking at the group and reserving, another consumer reads 10 entries.
    looked = one._new_entries

    def race(*arguments: Any) -> Any:
        client.xreadgroup("g", "other", {"s": ">"}, count=10)
        return looked(*arguments)

    monkeypatch.setattr(one, "_new_entries", race)
    end = one.latestOffset(start, ALL)
    monkeypatch.undo()
    first, *others = one.partitions(start, end)
    assert not first.run.owned
    assert all(partition.run.owned for partition in others)
    assert read(one, start, end) == list(range(10, 100))


def test_two_streams_share_the_limit_and_settle_alike(server: Server, client: redis.Redis) -> None:
    add(client, 10, "a")
    add(client, 100, "b", first=1000)
    one = reader(server, streams="a,b")
    at, rows = one.initialOffset(), []
    end = one.latestOffset(at, ReadMaxRows(40))
    first = read(one, at, end)
    assert sorted(first) == [*range(10), *range(1000, 1030)]
    rows += first
    while (more := one.latestOffset(end, ReadMaxRows(40))) != end:
        rows += read(one, end, more)
        end = more
    assert sorted(rows) == [*range(10), *range(1000, 1100)]
    assert pending_count(client, "a") == pending_count(client, "b") == 0


def test_available_now_ends_at_what_was_there_when_it_began(server: Server, client: redis.Redis) -> None:
    add(client, 100)
    one = reader(server)
    one.prepareForTriggerAvailableNow()
    at, rows = one.initialOffset(), []
    while (end := one.latestOffset(at, ReadMaxRows(40))) != at:
        rows += read(one, at, end)
        at = end
        add(client, 25, first=1000)
    assert rows == list(range(100))
    assert pending_count(client) == 0


def test_a_stream_that_does_not_exist_is_empty_until_it_does(server: Server, client: redis.Redis) -> None:
    one = reader(server)
    one.prepareForTriggerAvailableNow()
    start = one.initialOffset()
    assert one.latestOffset(start, ALL) == start
    again = reader(server)
    assert again.initialOffset() == start
    add(client, 3)
    assert read(again, start, again.latestOffset(start, ALL)) == [0, 1, 2]


@pytest.mark.parametrize("how", ["deleted", "trimmed"])
def test_entries_gone_before_they_are_read_stop_the_query_or_are_passed_over(
    server: Server, client: redis.Redis, how: str
) -> None:
    ids = add(client, 50)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    if how == "deleted":
        client.xdel("s", *ids[10:13])
        gone = {10, 11, 12}
    else:
        client.xtrim("s", maxlen=47, approximate=False)
        gone = {0, 1, 2}
    for query in (one, reader(server)):
        with pytest.raises(DataLossError, match="3 of .* entries that group 'g' was given .* are gone"):
            read(query, start, end)
    lenient = reader(server, failOnDataLoss="false")
    assert read(lenient, start, end) == [n for n in range(50) if n not in gone]
    lenient.commit(end)
    assert pending_count(client) == 0


def test_values_with_line_ends_and_mixed_fields_come_through(server: Server, client: redis.Redis) -> None:
    raw = server.client()
    raw.xadd("s", {"n": "1"})
    raw.xadd("s", {"other": b"a\r\nb", "n": "2"})
    raw.xadd("s", {"n": b"\xff"})
    raw.xadd("s", {"n": "4", "": ""})
    one = reader(server)
    start = one.initialOffset()
    assert read(one, start, one.latestOffset(start, ALL)) == [1, 2, None, 4]


def test_a_key_of_another_type_is_named(server: Server, client: redis.Redis) -> None:
    client.set("s", "text")
    with pytest.raises(WrongKeyTypeError, match="key 's' at .* holds something that is not a stream"):
        reader(server).initialOffset()


def test_a_destroyed_group_is_named(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xgroup_destroy("s", "g")
    with pytest.raises(GroupMissingError, match="the stream or its consumer group is gone"):
        one.latestOffset(end, ALL)


def test_a_group_set_back_below_the_checkpoint_is_refused(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    end = one.latestOffset(start, ALL)
    client.xgroup_setid("s", "g", "0")
    with pytest.raises(StreamStateError, match="stands at 0-0, below the checkpoint"):
        reader(server).latestOffset(end, ALL)


def test_a_stream_that_vanished_is_named(server: Server, client: redis.Redis) -> None:
    add(client, 5)
    one = reader(server)
    start = one.initialOffset()
    client.delete("s")
    with pytest.raises(GroupMissingError, match="XPENDING s g .*: the stream or its consumer group is gone"):
        one.latestOffset(start, ALL)
    one._settled["s"] = StreamId.parse(start["streams"]["s"])
    with pytest.raises(DataLossError, match="stream 's' at .* is gone"):
        one.latestOffset(start, ALL)
