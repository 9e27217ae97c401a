"""`archivePath` of readStream: the archive first, then the streams, each entry once, whatever dies or is trimmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from spark_streams.connector.errors import (
    ArchiveError,
    GroupExistsError,
    GroupMissingError,
    NotAllowedError,
    OffsetError,
    UnsupportedError,
)
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.history_reader import HistoryReader
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.spark.data_source import ReadAllAvailable, ReadLimit, ReadMaxRows, StartingReader
from tests.connector.source.archive.archived import Archiver, write_batch
from tools.driving import ALL, SCHEMA, forget_all, reader, rows, stop_all
from tools.sending import at_each_point
from tools.servers.server import Server

HOUR = 3_600_000
START = 1_700_000_000_000
Batches = list[list[int]]


def history_reader(server: Server, path: Path, schema: pa.Schema = SCHEMA, **options: str) -> HistoryReader:
    live = reader(server, schema, archivePath=str(path), **options)
    settings = live.resolved_options
    return HistoryReader(live, settings, Columns(schema, True, settings.mode, settings.column_name_of_corrupt_record))


class Query:
    """A query with its checkpoint, as Spark runs it. log: offsets; done: batches in the commit log; table: column n of
    each batch, where a batch that is run again replaces its rows."""

    def __init__(self, server: Server, path: Path, limit: ReadLimit = ALL, **options: str) -> None:
        self.server, self.path, self.limit, self.options = server, path, limit, options
        self.log: list[dict[str, Any]] = []
        self.done = 0
        self.table: dict[int, list[dict[str, Any]]] = {}

    def run(self, batches: int = 1000) -> None:
        """Start it, and run it until there is nothing to read, at most this many batches."""
        one = history_reader(self.server, self.path, **self.options)
        first = one.initialOffset()
        self.log = self.log or [first]
        if len(self.log) - 1 > self.done:
            self._batch(one)
            batches -= 1
        while batches and (end := one.latestOffset(self.log[-1], self.limit)) != self.log[-1]:
            if self.done:
                one.commit(self.log[-1])
            self.log.append(end)
            self._batch(one)
            batches -= 1

    def _batch(self, one: HistoryReader) -> None:
        begin, end = self.log[-2:]
        self.table[len(self.log)] = rows(one, begin, end)  # type: ignore[arg-type]
        self.done += 1

    @property
    def batches(self) -> Batches:
        return [[row["n"] for row in batch] for batch in self.table.values()]

    @property
    def numbers(self) -> list[int]:
        return [n for batch in self.batches for n in batch]


def add_hours(client: redis.Redis, ns: range, stream: str = "s") -> None:
    """An entry for each hour."""
    with client.pipeline(transaction=False) as pipe:
        for n in ns:
            pipe.xadd(stream, {"n": n}, id=f"{START + n * HOUR}-0")
        pipe.execute()


@pytest.fixture
def archiver(client: redis.Redis, tmp_path: Path) -> Archiver:
    return Archiver(client, tmp_path / "a")


@pytest.mark.parametrize("trimmed", [0, 150, 200, 300], ids=["kept", "some", "archived", "all"])
@pytest.mark.parametrize("limit", [None, 7, 64])
@pytest.mark.parametrize("ordered", ["false", "true"])
def test_the_archive_comes_first_then_the_stream_in_order(
    server: Server, client: redis.Redis, archiver: Archiver, trimmed: int, limit: int | None, ordered: str
) -> None:
    add_hours(client, range(300))
    for count in (30, 70, 100, 100):
        archiver.archive(count, trim=False)
    client.xtrim("s", maxlen=300 - trimmed, approximate=False)
    query = Query(server, archiver.path, ALL if limit is None else ReadMaxRows(limit), ordered=ordered)
    query.run()
    assert query.numbers == list(range(300))
    history = [batch for batch, end in zip(query.batches, query.log[1:], strict=True) if "history" in end]
    assert sum(map(len, history)) == trimmed
    if limit is not None:
        assert all(len(batch) == limit for batch in history[:-2])
        assert all(len(batch) <= limit for batch in history[-2:])
    assert ("history" in query.log[-1]) == (trimmed == 300)


def test_new_entries_and_more_batches_of_the_job_follow(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    """The job goes on after each batch: nothing that the group needs is trimmed."""
    add_hours(client, range(100))
    archiver.archive(60)
    query = Query(server, archiver.path, ReadMaxRows(10))
    query.run(batches=2)
    assert query.numbers == list(range(20))
    archiver.archive(40, trim=False)  # trims what all groups have acknowledged: nothing of it
    add_hours(client, range(100, 130))
    query.run()
    assert query.numbers == list(range(130))


def test_entries_of_two_streams_come_by_their_ids_within_the_limits(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    archivers = [Archiver(client, tmp_path / "a", stream) for stream in ("s", "t")]
    add_hours(client, range(0, 100, 2), "s")
    add_hours(client, range(1, 100, 2), "t")
    for number, archiver in enumerate(archivers):
        archiver.number = 10 * number
        archiver.archive(50)
    options = {"streams": "s,t", "maxEntriesPerTrigger": '{"s": 10, "t": 100}'}
    query = Query(server, tmp_path / "a", ALL, **options)
    query.run()
    assert sorted(query.numbers) == list(range(100))
    assert [max(batch) for batch in query.batches] == sorted(max(batch) for batch in query.batches)
    assert all(sum(n % 2 == 0 for n in batch) <= 10 for batch in query.batches)


def test_bytes_of_a_batch_are_limited(server: Server, client: redis.Redis, archiver: Archiver) -> None:
    with client.pipeline(transaction=False) as pipe:
        for n in range(200):
            pipe.xadd("s", {"n": n, "text": f"{n:0>1000}"}, id=f"{START + n}-0")
        pipe.execute()
    archiver.archive(200)
    query = Query(server, archiver.path, ALL, maxBytesPerTrigger="50kb")
    query.run()
    assert query.numbers == list(range(200))
    assert 3 <= len(query.batches) <= 40


def test_entries_that_were_removed_between_others_are_read(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    """Another group holds the first entry, and XTRIM … ACKED, or an operator, has removed archived ones above it."""
    add_hours(client, range(50))
    archiver.archive(30, trim=False)
    client.xdel("s", *[f"{START + n * HOUR}-0" for n in range(10, 20)])
    query = Query(server, archiver.path, ReadMaxRows(8))
    query.run()
    assert sorted(query.numbers) == list(range(50))
    assert query.batches[0] == list(range(10, 20))


def test_nothing_archived_nothing_read_twice(server: Server, client: redis.Redis, archiver: Archiver) -> None:
    add_hours(client, range(5))
    query = Query(server, archiver.path)
    query.run()
    assert (query.numbers, len(query.batches)) == (list(range(5)), 1)


def test_an_empty_stream_whose_entries_are_all_archived(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    add_hours(client, range(50))
    archiver.archive(50)
    query = Query(server, archiver.path)
    query.run()
    assert query.numbers == list(range(50))
    query.run()
    add_hours(client, range(50, 60))
    query.run()
    assert query.numbers == list(range(60))


@pytest.mark.parametrize("start", [f"{START + 10 * HOUR}-0", f"{START + 45 * HOUR}-0"])
def test_the_start_is_in_the_archive_or_in_the_stream(
    server: Server, client: redis.Redis, archiver: Archiver, start: str
) -> None:
    add_hours(client, range(60))
    archiver.archive(30)
    query = Query(server, archiver.path, startingOffsets=start)
    query.run()
    begin = (int(start.partition("-")[0]) - START) // HOUR + 1
    assert query.numbers == list(range(begin, 60))
    forget_all()
    client.xgroup_destroy("s", "g")
    again = Query(server, archiver.path, startingTimestamp=str(START + 20 * HOUR))
    again.run()
    assert again.numbers == list(range(20, 60))


@pytest.mark.in_turn
@pytest.mark.parametrize("limit", [5, None])
def test_killed_before_and_after_every_request_each_entry_comes_once(
    server: Server, client: redis.Redis, tmp_path: Path, limit: int | None
) -> None:
    """The job archives and trims between two lives."""
    query = archiver = None

    def begin() -> None:
        nonlocal query, archiver
        forget_all()
        client.flushall()
        archiver = Archiver(client, tmp_path / str(len(list(tmp_path.iterdir()))))
        add_hours(client, range(20))
        archiver.archive(12)
        query = Query(server, archiver.path, ALL if limit is None else ReadMaxRows(limit))

    def act() -> None:
        assert query is not None
        forget_all()
        client.delete("rstream:lease:{s}:g:spark")  # of the killed run
        if query.log:
            client.xtrim("s", minid=_needed(client), approximate=False)
        query.run()

    def check() -> None:
        assert query is not None
        assert query.numbers == list(range(20))
        stop_all()

    assert at_each_point(begin, act, check) > 15


def _needed(client: redis.Redis) -> str:
    """The lowest ID that a group still needs."""
    ids = []
    for group in client.xinfo_groups("s"):
        pending: Any = client.xpending("s", group["name"])
        ms, _, seq = str(group["last-delivered-id"]).partition("-")
        ids.append(pending["min"] if pending["pending"] else f"{ms}-{int(seq) + 1}")
    return min(ids, key=lambda entry: tuple(map(int, entry.split("-"))))


@pytest.mark.parametrize("pending", [False, True])
def test_a_group_that_has_passed_entries_of_the_stream_is_refused(
    server: Server, client: redis.Redis, archiver: Archiver, pending: bool
) -> None:
    add_hours(client, range(20))
    archiver.archive(5)
    client.xgroup_create("s", "g", "0")
    reply: Any = client.xreadgroup("g", "spark", {"s": ">"}, count=3)
    if not pending:
        client.xack("s", "g", *[entry for entry, _ in reply[0][1]])
    query = Query(server, archiver.path)
    with pytest.raises(
        GroupExistsError, match=r"has passed entry .*-0, which the stream still has.*onNewCheckpoint=re"
    ):
        query.run()
    stop_all()
    restarted = Query(server, archiver.path, onNewCheckpoint="restart")
    restarted.run()
    assert restarted.numbers == list(range(20))


def test_a_group_all_of_whose_entries_are_trimmed_goes_on_behind_the_archive(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    add_hours(client, range(20))
    archiver.archive(12)
    client.xgroup_create("s", "g", f"{START + 11 * HOUR}-0")
    query = Query(server, archiver.path)
    query.run()
    assert query.numbers == list(range(20))


def test_a_group_that_vanishes_while_the_archive_is_read_is_missing(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    add_hours(client, range(20))
    archiver.archive(12)
    query = Query(server, archiver.path, ReadMaxRows(4))
    query.run(batches=1)
    stop_all()
    client.xgroup_destroy("s", "g")
    with pytest.raises(GroupMissingError):
        query.run()
    stop_all()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert query.numbers == list(range(20))


def test_a_checkpoint_within_the_archive_needs_the_option(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    add_hours(client, range(20))
    archiver.archive(12)
    query = Query(server, archiver.path, ReadMaxRows(4))
    query.run(batches=2)
    stop_all()
    with pytest.raises(OffsetError, match="Set option archivePath again"):
        reader(server).latestOffset(query.log[-1], ALL)
    stop_all()
    query.run()
    stop_all()
    add_hours(client, range(20, 25))
    one = reader(server)
    end = one.latestOffset(query.log[-1], ALL)
    assert [row["n"] for row in rows(one, query.log[-1], end)] == list(range(20, 25))


def test_a_query_whose_checkpoint_knows_no_archive_goes_on_with_the_stream(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    add_hours(client, range(20))
    one = reader(server)
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    rows(one, begin, end)
    stop_all()
    archiver.archive(12, trim=False)
    add_hours(client, range(20, 25))
    again = history_reader(server, archiver.path)
    again.initialOffset()
    last = again.latestOffset(end, ALL)
    assert [row["n"] for row in rows(again, end, last)] == list(range(20, 25))  # type: ignore[arg-type]


def test_metadata_bad_values_and_delivery_counts(
    server: Server, client: redis.Redis, archiver: Archiver, caplog: pytest.LogCaptureFixture
) -> None:
    for n, value in enumerate(["1", "two", "3"]):
        client.xadd("s", {"n": value}, id=f"{START + n}-0")
    archiver.archive(2)
    schema = pa.schema([
        ("n", pa.int64()), ("_id", pa.string()), ("_deliveries", pa.int64()), ("_corrupt_record", pa.string()),
    ])  # fmt: skip
    one = history_reader(server, archiver.path, schema)
    begin = one.initialOffset()
    end = one.latestOffset(begin, ALL)
    found = rows(one, begin, end)  # type: ignore[arg-type]
    assert [(row["n"], row["_id"], row["_deliveries"]) for row in found] == [
        (1, f"{START}-0", None), (None, f"{START + 1}-0", None),
    ]  # fmt: skip
    assert "two" in found[1]["_corrupt_record"]
    assert any("read from the archive" in message for message in caplog.messages)
    removed = one.latestOffset(end, ALL)
    assert rows(one, end, removed) == []  # type: ignore[arg-type]
    last = one.latestOffset(removed, ALL)
    assert [(row["n"], row["_deliveries"]) for row in rows(one, removed, last)] == [(3, 1)]  # type: ignore[arg-type]


def test_a_spark_without_limits_reads_the_archive_too(server: Server, client: redis.Redis, archiver: Archiver) -> None:
    """Spark 4.0 and 4.1 call latestOffset() before initialOffset(), and pass no limit."""
    add_hours(client, range(30))
    archiver.archive(20)
    one = StartingReader(history_reader(server, archiver.path, maxEntriesPerTrigger="8"))
    at: dict[str, Any] = {}
    found: list[int] = []
    while (end := one.latestOffset()) != at:
        at = at or one.initialOffset()
        for partition in one.partitions(at, end):
            found += [row["n"] for batch in one.read(partition) for row in batch.to_pylist()]
        at = end
    assert found == list(range(30))


def test_an_archive_that_is_not_allowed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"streams": "s", "group": "g", "startingOffsets": "earliest", "archivePath": str(tmp_path)}
    assert SourceOptions.parse(given).archive_path == str(tmp_path)
    monkeypatch.setenv("RSTREAM_ALLOW_FILES", "/elsewhere")
    with pytest.raises(NotAllowedError, match="archivePath"):
        SourceOptions.parse(given)


def test_a_single_batch_is_refused_and_a_wrong_path_named(
    server: Server, client: redis.Redis, archiver: Archiver, tmp_path: Path
) -> None:
    add_hours(client, range(3))
    one = history_reader(server, archiver.path)
    with pytest.raises(UnsupportedError, match="availableNow=True"):
        one.latestOffset(one.initialOffset(), ReadAllAvailable())
    stop_all()
    with pytest.raises(ArchiveError, match="is not a folder here"):
        Query(server, tmp_path / "absent").run()


def test_batches_of_an_archive_that_overlap_come_in_order(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """Claimed entries are archived after newer ones."""
    ids = [f"{START + n * 60_000}-{seq}" for n in range(40) for seq in (9, 10)]
    all_rows = [("s", entry, [("n", str(n))]) for n, entry in enumerate(ids)]
    path = tmp_path / "a"
    write_batch(path, 0, [row for n, row in enumerate(all_rows) if n % 3])
    write_batch(path, 1, [row for n, row in enumerate(all_rows) if not n % 3])
    client.xadd("s", {"n": 80}, id=f"{START + HOUR}-0")
    query = Query(server, path, ReadMaxRows(9))
    query.run()
    assert query.numbers == list(range(81))


def test_a_pattern_reads_the_archive_of_the_streams_it_begins_with(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    archiver = Archiver(client, tmp_path / "a", "s:1")
    add_hours(client, range(10), "s:1")
    archiver.archive(5)
    query = Query(server, tmp_path / "a", streamsPattern="s:*")
    query.run()
    assert query.numbers == list(range(10))


# -- streams that are behind their archive ---------------------------------------------------------------------------


def lose(client: redis.Redis, how: str) -> None:
    """Lose the stream, or restore it to an older state."""
    client.delete("s")
    if how == "empty":
        client.xgroup_create("s", "other", "0", mkstream=True)
    if how.startswith("older"):
        add_hours(client, range(10, 25))
    if how == "older and new":
        client.xadd("s", {"n": 1000}, id=f"{START + 30 * HOUR}-7")
    if how == "new only":
        client.xadd("s", {"n": 2000}, id=f"{START + 30 * HOUR}-7")


LOST = ["missing", "empty", "older", "older and new", "new only"]
MORE = {"older and new": [1000], "new only": [2000]}


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("limit", [None, 1, 7])
@pytest.mark.parametrize("by", ["streams", "streamsPattern"])
def test_what_a_stream_has_lost_comes_from_the_archive(
    server: Server, client: redis.Redis, archiver: Archiver, how: str, limit: int | None, by: str
) -> None:
    """The stream was created again, or its server was restored to an older state. New entries have higher IDs, or IDs
    between those of the archive."""
    add_hours(client, range(60))
    archiver.archive(60, trim=False)
    lose(client, how)
    options = {"streamsPattern": "[s]"} if by == "streamsPattern" else {}
    query = Query(server, archiver.path, ALL if limit is None else ReadMaxRows(limit), **options)
    query.run()
    assert sorted(query.numbers) == [*range(60), *MORE.get(how, [])]
    if limit is not None:
        lost = [batch for batch, end in zip(query.batches, query.log[1:], strict=True) if is_limited(end)]
        assert all(len(batch) <= limit for batch in lost)
    forget_all()
    client.delete("rstream:lease:{s}:g:spark")
    add_hours(client, range(60, 70))
    again = Query(server, archiver.path, **options)
    again.log, again.done = query.log, query.done
    again.run()
    assert again.numbers == list(range(60, 70))


def is_limited(end: dict[str, Any]) -> bool:
    return "history" in end and not end["history"]["read"].startswith("18446744073709551615")


@pytest.mark.parametrize(("how", "limit"), [("missing", 15), ("older and new", 15), ("new only", None)])
@pytest.mark.in_turn
def test_a_query_on_a_lost_stream_that_is_killed_at_every_request_reads_each_entry_once(
    server: Server, client: redis.Redis, tmp_path: Path, how: str, limit: int | None
) -> None:
    query = None

    def begin() -> None:
        nonlocal query
        forget_all()
        client.flushall()
        archiver = Archiver(client, tmp_path / str(len(list(tmp_path.iterdir()))))
        add_hours(client, range(40))
        archiver.archive(40, trim=False)
        lose(client, how)
        query = Query(server, archiver.path, ALL if limit is None else ReadMaxRows(limit))

    def act() -> None:
        assert query is not None
        forget_all()
        client.delete("rstream:lease:{s}:g:spark")  # of the killed run
        query.run()

    def check() -> None:
        assert query is not None
        assert sorted(query.numbers) == [*range(40), *MORE.get(how, [])]
        stop_all()

    assert at_each_point(begin, act, check) > 15


@pytest.mark.parametrize("by", ["streams", "streamsPattern"])
def test_one_stream_of_several_is_missing_and_is_created_later(
    server: Server, client: redis.Redis, tmp_path: Path, by: str
) -> None:
    archivers = [Archiver(client, tmp_path / "a", stream) for stream in ("s:1", "s:2", "x")]
    for number, archiver in enumerate(archivers):
        add_hours(client, range(100 * number, 100 * number + 20), archiver.stream)
        archiver.number = 10 * number
        archiver.archive(20, trim=number == 0)
    client.delete("s:2")
    options = {"streamsPattern": "s:*"} if by == "streamsPattern" else {"streams": "s:1,s:2"}
    query = Query(server, tmp_path / "a", ReadMaxRows(6), **options)
    query.run()
    assert sorted(query.numbers) == [*range(20), *range(100, 120)]
    add_hours(client, range(120, 130), "s:2")
    stop_all()
    query.run()
    assert sorted(query.numbers) == [*range(20), *range(100, 130)]


def test_a_stream_that_gets_its_old_entries_after_the_archive_was_read_is_refused(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    """An operator loads a backup into the stream while the query runs. The query would read these entries twice."""
    add_hours(client, range(40))
    archiver.archive(40, trim=False)
    client.delete("s")
    query = Query(server, archiver.path, ReadMaxRows(10))
    query.run(batches=2)
    client.xadd("s", {"n": 7}, id=f"{START}-7")  # of another ID: it is a new entry
    add_hours(client, range(30, 40))
    with pytest.raises(ArchiveError, match=f"'s' got entry {START + 30 * HOUR}-0 after the query began.*new group"):
        query.run()
    stop_all()
    fresh = Query(server, archiver.path, group="other")
    fresh.run()
    assert sorted(fresh.numbers) == sorted([*range(40), 7])


# -- kills and ends of batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["streams", "streamsPattern"])
@pytest.mark.parametrize("archived", ["nothing", "another stream"])
def test_a_query_that_is_killed_before_its_first_offset_starts_again(
    server: Server, client: redis.Redis, archiver: Archiver, by: str, archived: str
) -> None:
    """The archive has nothing to give, so the first batch is of the stream: its entries are reserved, and no offset."""
    add_hours(client, range(20))
    if archived == "another stream":
        write_batch(archiver.path, 0, [("other", f"{START + 9000 * HOUR}-0", [("n", "1")])])
    options = {"streamsPattern": "[s]"} if by == "streamsPattern" else {}
    for _ in range(2):
        one = history_reader(server, archiver.path, **options)
        first = one.initialOffset()
        assert one.latestOffset(first, ReadMaxRows(5)) != first
        forget_all()
        client.delete("rstream:lease:{s}:g:spark")
    pending: Any = client.xpending("s", "g")
    assert pending["pending"] >= 5
    query = Query(server, archiver.path, ReadMaxRows(5), **options)
    query.run()
    assert sorted(query.numbers) == list(range(20))


@pytest.mark.parametrize("begin_at", ["the start", "the group"])
@pytest.mark.in_turn
def test_a_query_without_anything_in_the_archive_may_be_killed_at_every_request(
    server: Server, client: redis.Redis, tmp_path: Path, begin_at: str
) -> None:
    query = None

    def begin() -> None:
        nonlocal query
        forget_all()
        client.flushall()
        archiver = Archiver(client, tmp_path / str(len(list(tmp_path.iterdir()))))
        add_hours(client, range(12))
        if begin_at == "the group":
            client.xgroup_create("s", "g", "0")
        query = Query(server, archiver.path, ReadMaxRows(5))

    def act() -> None:
        assert query is not None
        forget_all()
        client.delete("rstream:lease:{s}:g:spark")  # of the killed run
        query.run()

    def check() -> None:
        assert query is not None
        assert sorted(query.numbers) == list(range(12))
        stop_all()

    assert at_each_point(begin, act, check) > 15


def test_what_a_committed_query_has_read_is_still_refused_without_its_checkpoint(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    add_hours(client, range(20))
    query = Query(server, archiver.path, ReadMaxRows(5))
    query.run()
    stop_all()
    with pytest.raises(GroupExistsError, match="has passed entry"):
        Query(server, archiver.path).run()


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("per_stream", [False, True])
def test_entries_of_several_streams_with_equal_ids_are_divided_by_the_limit(
    server: Server, client: redis.Redis, tmp_path: Path, limit: int, per_stream: bool
) -> None:
    names = ["s", "t", "u"]
    for number, stream in enumerate(names):
        one = Archiver(client, tmp_path / "a", stream)
        add_hours(client, range(12), stream)
        one.number = 10 * number
        one.archive(12)
    options = {"streams": ",".join(names)}
    if per_stream:
        options["maxEntriesPerTrigger"] = '{"s": 1, "t": 2, "u": 100}'
    query = Query(server, tmp_path / "a", ReadMaxRows(limit), **options)
    query.run()
    assert sorted(query.numbers) == sorted([*range(12)] * 3)
    assert all(len(batch) <= limit for batch in query.batches)
    if not per_stream:
        assert all(len(batch) == limit for batch in query.batches[:-1])
    ends = [str(end) for end in query.log]
    assert len(set(ends)) == len(ends)


def test_an_entry_that_a_restored_job_archived_twice_is_read_once(
    server: Server, client: redis.Redis, archiver: Archiver
) -> None:
    """The server was restored to an older state, and with it the group of the job."""
    rows_of_job = [("s", f"{START + n * HOUR}-0", [("n", str(n))]) for n in range(40)]
    write_batch(archiver.path, 0, rows_of_job[:30])
    write_batch(archiver.path, 1, rows_of_job[20:])
    query = Query(server, archiver.path, ReadMaxRows(7))
    query.run()
    assert query.numbers == list(range(40))
    assert all(len(batch) <= 7 for batch in query.batches)
    write_batch(archiver.path, 2, [("s", f"{START + 25 * HOUR}-0", [("n", "99")])])
    with pytest.raises(ArchiveError, match=f"two different entries .*{START + 25 * HOUR}-0"):
        Query(server, archiver.path, group="other").run()
