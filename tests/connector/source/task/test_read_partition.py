"""What a task reads: runs of any kind, of many streams, on both servers; reading leaves the group as it was."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.errors import DataLossError, GroupMissingError, ServerReplyError
from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, PENDING, Part, Task
from spark_streams.connector.source.rows.column_report import ColumnReport
from spark_streams.connector.source.rows.columns import Columns, Dead
from spark_streams.connector.source.task import fetcher
from spark_streams.connector.source.task.read_partition import TaskCallbacks, read_task
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, pack
from spark_streams.connector.wire.session import Session
from tests.proxy import Proxy
from tools.servers.server import Server

SCHEMA = pa.schema([("n", pa.int64()), ("_stream", pa.string()), ("_id", pa.string())])
COUNTED = SCHEMA.append(pa.field("_deliveries", pa.int32()))
Row = tuple[Any, ...]
# Small pages, so that a few hundred entries cross every boundary.
SMALL = replace(LIMITS, first_page=7, largest_page=40)


class Reading:
    """The rows of a task, and what it was told on the way."""

    def __init__(
        self,
        server: Server,
        *runs: Part,
        schema: pa.Schema = SCHEMA,
        mode: str = "PERMISSIVE",
        fail: bool = True,
        limits: Limits = SMALL,
    ):
        self.lost: list[tuple[Range, int]] = []
        self.dead: list[tuple[str, bytes]] = []
        self.rows: list[Row] = []
        self.found: tuple[ColumnReport, bool] | None = None
        self.pages = 0
        member = Membership("g", "c")
        with Session(Address.parse(server.url), "reading") as connection:
            callbacks = TaskCallbacks(self._lost, self._unreadable, self._record_report)
            for batch in read_task(
                connection, member, Task(runs), Columns(schema, True, mode), callbacks, fail, limits
            ):
                assert batch.schema == schema
                self.rows += [tuple(row.values()) for row in batch.to_pylist()]
                self.pages += 1

    def _record_report(self, report: ColumnReport, whole: bool) -> None:
        self.found = report, whole

    def _lost(self, run: Range, count: int) -> None:
        self.lost.append((run, count))

    def _unreadable(self, streams: str | pa.Array, dead: Dead) -> None:
        names = [streams if isinstance(streams, str) else streams[row].as_py() for row in dead.rows.tolist()]
        self.dead += zip(names, dead.entries()[0].to_pylist(), strict=True)


def add(client: redis.Redis, stream: str, *values: Any, first: int = 1) -> list[StreamId]:
    """Entries first-0, first+1-0 …: the same ids in every stream."""
    pipe = client.pipeline(transaction=False)
    for at, value in enumerate(values):
        pipe.xadd(stream, {"n": value}, id=f"{first + at}-0")
    return [StreamId.parse(i) for i in pipe.execute()]


def deliver(client: redis.Redis, stream: str, count: int, consumer: str = "c") -> list[StreamId]:
    replies = client.xreadgroup("g", consumer, {stream: ">"}, count=count)
    return [StreamId.parse(i) for _, entries in replies for i, _ in entries]


def group(client: redis.Redis, *streams: str) -> None:
    for stream in streams:
        client.xgroup_create(stream, "g", id="0", mkstream=True)


def expected(stream: str, ids: Sequence[StreamId]) -> list[Row]:
    """Rows whose n is their id's milliseconds."""
    return [(i.ms, stream, str(i)) for i in ids]


def owned(stream: str, of: Sequence[StreamId]) -> Part:
    return Part(Range(stream, of[0].previous(), of[-1], len(of)), ALL)


def shared(stream: str, of: Sequence[StreamId]) -> Part:
    return Part(Range(stream, of[0].previous(), of[-1], len(of)), PENDING)


def pending(client: redis.Redis, stream: str) -> list[tuple[str, str, int]]:
    found = client.xpending_range(stream, "g", "-", "+", 10_000)
    return [(one["message_id"], one["consumer"], one["times_delivered"]) for one in found]


def test_small_runs_of_many_streams_share_pages_and_the_same_ids_stay_apart(
    server: Server, client: redis.Redis
) -> None:
    streams = [f"s{n}" for n in range(30)]
    runs = [owned(stream, add(client, stream, *range(1, 6))) for stream in streams]
    reading = Reading(server, *runs)
    assert reading.rows == [
        row for stream in streams for row in expected(stream, [StreamId(n, 0) for n in range(1, 6)])
    ]
    # 7 entries, 28, then 40 at a time.
    assert reading.pages == 5


def test_a_run_that_others_read_from_gives_only_what_is_ours(server: Server, client: redis.Redis) -> None:
    group(client, "s")
    add(client, "s", *range(1, 301))
    ours, theirs = [], []
    while more := deliver(client, "s", 20):
        ours += more
        theirs += deliver(client, "s", 7, "other")
    before = pending(client, "s")
    assert Reading(server, shared("s", ours)).rows == expected("s", ours)
    assert pending(client, "s") == before


def test_a_few_entries_of_ours_in_a_wide_range_are_asked_for_alone(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(client, "s", "t")
    add(client, "s", *range(1, 3001))
    one = add(client, "t", *range(1, 11))
    ours = deliver(client, "s", 3)
    for _ in range(5):
        deliver(client, "s", 550, "other")
        ours += deliver(client, "s", 12)
    seen = 0
    receive = Connection.receive

    def counting(connection: Connection, most: int | None = None) -> memoryview:
        nonlocal seen
        reply = receive(connection, most)
        seen += bytes(reply).count(b"\r\n*2\r\n")
        return reply

    monkeypatch.setattr(Connection, "receive", counting)
    assert Reading(server, shared("s", ours), owned("t", one)).rows == expected("s", ours) + expected("t", one)
    assert seen < 300, "most of the range was not read"


def test_entries_that_are_no_longer_pending_are_read_by_the_ids_that_a_run_names(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, "s", *range(1, 201))
    ours = ids[0:100:3] + ids[150:190]
    packed = b"".join(pack(bytes(i)).split(b"\r\n", 1)[1] for i in ours)
    reading = Reading(server, replace(shared("s", ours), by=packed), schema=COUNTED)
    assert reading.rows == [(*row, None) for row in expected("s", ours)]


def test_delivery_counts_are_those_of_the_pending_list_and_reading_adds_none(
    server: Server, client: redis.Redis
) -> None:
    group(client, "s", "t")
    ids = add(client, "s", *range(1, 101))
    add(client, "t", *range(1, 101))
    deliver(client, "s", 100)
    mine = deliver(client, "t", 30)
    deliver(client, "t", 5, "other")
    mine += deliver(client, "t", 65)
    client.xclaim("s", "g", "c", 0, [str(i) for i in ids[10:20]])
    client.xclaim("t", "g", "c", 0, [str(i) for i in mine[25:35]])
    client.xack("s", "g", *[str(i) for i in ids[40:43]])
    for _ in range(2):
        reading = Reading(server, owned("s", ids), shared("t", mine), schema=COUNTED)
        counts = [2 if 10 <= n < 20 else None if 40 <= n < 43 else 1 for n in range(100)]
        assert reading.rows[:100] == [(*row, n) for row, n in zip(expected("s", ids), counts, strict=True)]
        counts = [2 if 25 <= n < 35 else 1 for n in range(95)]
        assert reading.rows[100:] == [(*row, n) for row, n in zip(expected("t", mine), counts, strict=True)]


def test_without_a_pending_list_delivery_counts_are_null(server: Server, client: redis.Redis) -> None:
    group(client, "s")
    ids = add(client, "s", *range(1, 31))
    client.xreadgroup("g", "c", {"s": ">"}, noack=True)
    assert {row[3] for row in Reading(server, owned("s", ids), schema=COUNTED).rows} == {None}


def test_delivery_counts_are_right_where_deleted_entries_are_pending(server: Server, client: redis.Redis) -> None:
    """The pending list's page then ends before the stream's."""
    group(client, "s")
    ids = add(client, "s", *range(1, 201))
    deliver(client, "s", 200)
    gone = ids[3:60] + ids[100:111]
    client.xdel("s", *[str(i) for i in gone])
    left = [i for i in ids if i not in gone]
    reading = Reading(server, owned("s", ids), schema=COUNTED, fail=False)
    assert reading.rows == [(*row, 1) for row in expected("s", left)]
    assert reading.lost == [(owned("s", ids).range, len(gone))]


@pytest.mark.parametrize("kind", [owned, shared])
def test_missing_entries_are_an_error_or_counted_for_each_run(server: Server, client: redis.Redis, kind: Any) -> None:
    group(client, "s", "t")
    ids, others = add(client, "s", *range(1, 101)), add(client, "t", *range(1, 11))
    deliver(client, "s", 100)
    deliver(client, "t", 10)
    client.xdel("s", *[str(i) for i in ids[20:90]])
    run = kind("s", ids)
    with pytest.raises(DataLossError, match="stream 's': 70 entries above 0-.* of a batch of 100 .* is at 100-0"):
        Reading(server, run, owned("t", others))
    reading = Reading(server, run, owned("t", others), fail=False)
    assert reading.rows == expected("s", ids[:20] + ids[90:]) + expected("t", others)
    assert reading.lost == [(run.range, 70)]


def test_a_run_without_any_entry_ends_nothing_early(server: Server, client: redis.Redis) -> None:
    group(client, "s", "t")
    ids, others = add(client, "s", *range(1, 101)), add(client, "t", *range(1, 11))
    deliver(client, "s", 100)
    deliver(client, "t", 10)
    client.xtrim("s", maxlen=0)
    for kind in (owned, shared):
        reading = Reading(server, kind("s", ids), shared("t", others), fail=False)
        assert reading.rows == expected("t", others)
        assert [count for _, count in reading.lost] == [100]


def test_a_read_does_not_depend_on_the_number_of_entries_that_was_estimated(
    server: Server, client: redis.Redis
) -> None:
    ids = add(client, "s", *range(1, 101))
    for guess in (0, 3, 100, 5000):
        part = Part(Range("s", MIN_ID, MAX_ID, guess), ALL)
        with Session(Address.parse(server.url), "reading") as connection:
            pages = fetcher.Fetcher(connection, Membership("", ""), [part], False, limits=SMALL).pages()
            found = [entry for page in pages for entry in page.entries.ids().to_pylist()]
        assert found == [bytes(one) for one in ids]


def test_rows_above_the_end_of_a_run_are_left_to_the_next(server: Server, client: redis.Redis) -> None:
    group(client, "s")
    add(client, "s", *range(1, 101))
    deliver(client, "s", 1, "other")
    ours = deliver(client, "s", 99)
    assert Reading(server, shared("s", ours[:50])).rows == expected("s", ours[:50])
    assert Reading(server, shared("s", ours[:50]), shared("s", ours[50:])).rows == expected("s", ours)


def test_bad_values_of_others_are_none_of_our_business(server: Server, client: redis.Redis) -> None:
    group(client, "s", "t")
    add(client, "s", 1, 2, "x", "theirs", 5, "y")
    add(client, "t", "z", 2)
    ours = deliver(client, "s", 3)
    deliver(client, "s", 1, "other")
    ours += deliver(client, "s", 2)
    reading = Reading(server, shared("s", ours), owned("t", [StreamId(1, 0), StreamId(2, 0)]), mode="DEADLETTER")
    assert reading.rows == [(1, "s", "1-0"), (2, "s", "2-0"), (5, "s", "5-0"), (2, "t", "2-0")]
    assert reading.dead == [("s", b"3-0"), ("s", b"6-0"), ("t", b"1-0")]


def test_large_entries_after_small_ones_do_not_come_all_at_once(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 entries of a few bytes, then 60 of 100 kB, and one of 2 MB: with 8 MB as the most, what came in one reply
    was never much more."""
    limits = replace(LIMITS, first_page=7, page_bytes=1 << 18, max_reply_bytes=1 << 20)
    sizes: list[int] = []
    receive = Connection.receive

    def measuring(connection: Connection, most: int | None = None) -> memoryview:
        reply = receive(connection, most)
        sizes.append(len(reply))
        return reply

    monkeypatch.setattr(Connection, "receive", measuring)
    group(client, "s")
    values = [*range(1, 301), *["x" * 100_000] * 60, "x" * 2_000_000, 7]
    ids = add(client, "s", *values)
    theirs = add(client, "s", 9, first=1000)
    schema = pa.schema([("_id", pa.string())])
    assert Reading(server, owned("s", ids), schema=schema, limits=limits).rows == [(str(i),) for i in ids]
    assert max(sizes) > 2_000_000, "an entry that is larger than a page comes alone"
    assert sorted(sizes)[-2] < 2_100_000
    deliver(client, "s", len(ids))
    deliver(client, "s", 1, "other")
    assert Reading(server, shared("s", ids), schema=schema, limits=limits).rows == [(str(i),) for i in ids]
    assert theirs


def test_a_missing_group_is_a_named_error(server: Server, client: redis.Redis) -> None:
    ids = add(client, "s", *range(1, 11))
    with pytest.raises(GroupMissingError, match="XPENDING s g at .*: the stream or its consumer group is missing"):
        Reading(server, shared("s", ids))


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_runs_each_entry_of_ours_is_read_once_and_in_order(
    server: Server, client: redis.Redis, seed: int
) -> None:
    chosen = random.Random(seed)
    limits = replace(SMALL, largest_page=chosen.choice([1, 3, 40, 500]))
    runs: list[Part] = []
    rows: list[Row] = []
    for stream in [f"s{n}" for n in range(chosen.randrange(1, 12))]:
        group(client, stream)
        length = chosen.choice([3, 30, 300])
        add(client, stream, *range(1, length + 1))
        while True:
            mine: list[StreamId] = []
            kind = owned
            for _ in range(chosen.randrange(1, 4)):
                mine += deliver(client, stream, chosen.randrange(1, length))
                if chosen.random() < 0.5 and deliver(client, stream, chosen.choice([1, 5, 100]), "other"):
                    kind = shared
            if not mine:
                break
            runs.append(kind(stream, mine))
            rows += expected(stream, mine)
    reading = Reading(server, *runs, schema=COUNTED, limits=limits)
    assert reading.rows == [(*row, 1) for row in rows]
    assert Reading(server, *runs, limits=limits).rows == rows


def test_a_connection_that_breaks_between_and_inside_pages_is_made_again(server: Server, client: redis.Redis) -> None:
    group(client, "s")
    ids = [*add(client, "s", *range(300))]
    deliver(client, "s", 300)
    found: list[bytes] = []
    with Proxy(server.url) as proxy, Session(Address.parse(proxy.url), "reading") as connection:
        one = fetcher.Fetcher(connection, Membership("g", "c"), [owned("s", ids)], True, limits=SMALL)
        for number, page in enumerate(one.pages()):
            found += page.entries.ids().to_pylist()
            if number % 3 == 0:
                proxy.cut_all()
        assert proxy.connections > 2
    assert found == [bytes(one) for one in ids]


@pytest.mark.parametrize("said", ["LOADING Redis is loading", "MASTERDOWN Link with MASTER is down", "BUSY a script"])
def test_a_server_that_cannot_answer_for_the_moment_is_asked_again(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    ids = add(client, "s", *range(1, 101))
    receive = Connection.receive
    calls = 0

    def busy(connection: Connection, most: int | None = None) -> memoryview:
        nonlocal calls
        calls += 1
        reply = receive(connection, most)
        return memoryview(f"-{said}\r\n".encode()) if calls in (1, 4) else reply

    monkeypatch.setattr(Connection, "receive", busy)
    assert Reading(server, owned("s", ids)).rows == expected("s", ids)
    monkeypatch.setattr(Connection, "receive", lambda self, max_bytes=None: memoryview(b"-ERR whatever\r\n"))
    with pytest.raises(ServerReplyError, match="XRANGE of 's' at .*: expected entries, .* answered with: ERR whatever"):
        Reading(server, owned("s", ids))


def test_modules_are_no_garbage_in_a_worker(server: Server, client: redis.Redis) -> None:
    """Spark collects garbage after each task; what the first task has found there stays out of that."""
    Reading(server, owned("s", add(client, "s", 1)))
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    Reading(server, owned("s", add(client, "s", 2, first=2)))
    assert gc.get_freeze_count() <= frozen, "once, not with each task; what is dropped is no longer counted"


def test_pages_become_smaller_than_a_reply_that_the_server_allows(server: Server, client: redis.Redis) -> None:
    """It closes a connection with more unread bytes (client-output-buffer-limit)."""
    pipe = client.pipeline(transaction=False)
    for n in range(600):
        pipe.xadd("s", {"n": n, "more": "x" * 2_000})
    pipe.execute()
    name, limits = "client-output-buffer-limit", replace(LIMITS, first_page=10)
    before = client.config_get(name)[name]
    client.config_set(name, "normal 100000 0 0")
    try:
        reading = Reading(server, Part(Range("s", MIN_ID, MAX_ID, 600), ALL), limits=limits)
    finally:
        client.config_set(name, before)
    assert [row[0] for row in reading.rows] == list(range(600))
