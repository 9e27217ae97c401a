"""`archivePath`: each entry once, from the stream or from its archive, whatever the job `archive` does meanwhile."""

from __future__ import annotations

import datetime
import importlib.util
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import (
    ArchiveError,
    InvalidOptionError,
    NotAllowedError,
    SchemaError,
    StreamMissingError,
)
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.archive.files import ArchiveFile
from spark_streams.connector.source.archive.history import cut_by_date
from spark_streams.connector.source.batch_reader import BatchReader
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.rows.columns import Columns
from tests.connector.source.archive.archived import SCHEMA, Archiver, write_batch
from tests.connector.source.held_ids import IDS
from tools.servers.server import Server

COLUMNS = pa.schema([("n", pa.int64()), ("_stream", pa.string()), ("_id", pa.string())])
START = 1_700_000_000_000
HOUR = 3_600_000
DAY_0 = datetime.date(1970, 1, 1).toordinal()


def reader(server: Server, path: Path | str, schema: pa.Schema = COLUMNS, **options: str) -> BatchReader:
    named = {} if "streamsPattern" in options else {"streams": "s"}
    checked = BatchSourceOptions.parse({"url": server.url, **named, "archivePath": str(path), **options})
    return BatchReader(checked, Columns(schema, True, checked.mode, checked.column_name_of_corrupt_record), LIMITS)


def read(one: BatchReader, before: Callable[[int], None] = lambda number: None) -> list[dict[str, Any]]:
    """All rows. before: called before each task, with its number."""
    rows = []
    for number, partition in enumerate(one.partitions()):
        before(number)
        task, share = pickle.loads(pickle.dumps((one, partition)))
        rows += [row for batch in task.read(share) for row in batch.to_pylist()]
    return rows


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["n"] for row in rows)


def add(client: redis.Redis, ns: range, stream: str = "s") -> None:
    """An entry for each hour."""
    with client.pipeline(transaction=False) as pipe:
        for n in ns:
            pipe.xadd(stream, {"n": n}, id=f"{START + n * HOUR}-0")
        pipe.execute()


@pytest.mark.parametrize("trimmed", [0, 150, 300], ids=["kept", "half", "all"])
def test_trimmed_entries_come_from_the_archive_and_each_entry_comes_once(
    server: Server, client: redis.Redis, tmp_path: Path, trimmed: int
) -> None:
    archiver = Archiver(client, tmp_path / "a")
    add(client, range(300))
    for _ in range(4):
        archiver.archive(50, trim=False)
    archiver.archive(100, trim=False)
    client.xtrim("s", maxlen=300 - trimmed, approximate=False)
    rows = read(reader(server, tmp_path / "a", minPartitions="3"))
    assert numbers(rows) == list(range(300))
    assert all(row["_id"] == f"{START + row['n'] * HOUR}-0" and row["_stream"] == "s" for row in rows)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"startingOffsets": f"{START + 10 * HOUR}-0"}, range(11, 300)),
        ({"endingOffsets": f"{START + 10 * HOUR}-0"}, range(11)),
        ({"startingTimestamp": str(START + 190 * HOUR), "endingTimestamp": str(START + 210 * HOUR)}, range(190, 210)),
        ({"startingOffsets": f"{START + 250 * HOUR}-0"}, range(251, 300)),
    ],
)
def test_bounds_hold_on_both_sides_of_the_border(
    server: Server, client: redis.Redis, tmp_path: Path, bounds: dict[str, str], expected: range
) -> None:
    archiver = Archiver(client, tmp_path / "a")
    add(client, range(300))
    archiver.archive(200)
    assert numbers(read(reader(server, tmp_path / "a", **bounds))) == list(expected)


@pytest.mark.parametrize("step", ["read", "write", "acknowledge", "trim"])
@pytest.mark.parametrize("moment", [0, 2, 5, 6, 7, 8])  # five tasks of the archive, then four of the stream
def test_the_job_may_take_any_step_at_any_moment_of_a_read(
    server: Server, client: redis.Redis, tmp_path: Path, step: str, moment: int
) -> None:
    """One batch is in work when the read is planned; the job goes on before a task, and new entries arrive."""
    archiver = Archiver(client, tmp_path / "a")
    add(client, range(200))
    archiver.archive(80)
    archiver.read(60)
    steps = {"read": lambda: None, "write": archiver.write, "acknowledge": archiver.acknowledge, "trim": archiver.trim}
    names = list(steps)
    for name in names[: names.index(step)]:
        steps[name]()

    def go_on(number: int) -> None:
        if number == moment:
            for name in names[names.index(step) :]:
                steps[name]()
            add(client, range(200, 230))
            archiver.archive(1000)

    rows = read(reader(server, tmp_path / "a", entriesPerPartition="40", minPartitions="4"), go_on)
    assert numbers(rows) == list(range(200))


def test_an_entry_that_was_trimmed_between_others_is_read_from_the_archive(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """XTRIM … ACKED keeps entries that another group needs, and removes those above them."""
    archiver = Archiver(client, tmp_path / "a")
    add(client, range(100))
    archiver.archive(100, trim=False)
    client.xdel("s", *[f"{START + n * HOUR}-0" for n in range(100) if n != 5])
    assert numbers(read(reader(server, tmp_path / "a"))) == list(range(100))


def test_a_batch_that_a_killed_job_has_written_and_writes_again_counts_once(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """Its files vanish before a task reads them, and other files take their place."""
    archiver = Archiver(client, tmp_path / "a")
    add(client, range(100))
    archiver.archive(40)
    archiver.read(40)
    files = archiver.write()

    def run_again(number: int) -> None:
        for file in files if number == 1 else []:
            shutil.rmtree(file.parent)
        if number == 1:
            write_batch(archiver.path, archiver.number, archiver.batch[:10])

    assert numbers(read(reader(server, tmp_path / "a"), run_again)) == list(range(100))


def test_each_stream_has_its_own_border(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    first, second = Archiver(client, tmp_path / "a"), Archiver(client, tmp_path / "a", "t")
    second.number = 100
    add(client, range(60))
    add(client, range(100, 160), "t")
    first.archive(50)
    second.archive(10)
    rows = read(reader(server, tmp_path / "a", streams="s,t"))
    assert numbers(rows) == [*range(60), *range(100, 160)]
    assert {row["_stream"] for row in rows if row["n"] >= 100} == {"t"}
    assert numbers(read(reader(server, tmp_path / "a", streams="t"))) == list(range(100, 160))


def test_the_bytes_of_an_entry_are_those_of_the_stream(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    archiver = Archiver(client, tmp_path / "a")
    hexed = " ".join(word.hex() for word in (b"n", b"\xff\xfe", b"n", b"7", b"m", b""))
    fields = [[("n", "1"), ("m", "Ærø")], [("rstream:hex", hexed)], [("n", "3")]]
    client.xadd("s", {"n": 0}, id=f"{START}-0")
    archiver.archive(1)
    write_batch(tmp_path / "a", 0, [("s", f"{START - 10 + n}-0", one) for n, one in enumerate(fields)])
    schema = pa.schema([("n", pa.binary()), ("_fields", pa.map_(pa.binary(), pa.binary()))])
    rows = read(reader(server, tmp_path / "a", schema))
    assert [row["n"] for row in rows] == [b"1", b"7", b"3"]
    assert rows[0]["_fields"] == [(b"n", b"1"), (b"m", "Ærø".encode())]
    assert rows[1]["_fields"] == [(b"n", b"\xff\xfe"), (b"n", b"7"), (b"m", b"")]


def test_ids_that_are_no_times_are_read(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    archiver = Archiver(client, tmp_path / "a")
    ids = ["1-1", "9-5", "9-10", "10-2", "100-0", "2000-0"]
    for n, one in enumerate(ids):
        client.xadd("s", {"n": n}, id=one)
    archiver.archive(5)
    assert numbers(read(reader(server, tmp_path / "a"))) == list(range(6))
    assert numbers(read(reader(server, tmp_path / "a", startingOffsets="9-5", endingOffsets="100-0"))) == [2, 3, 4]


# -- streams that are behind their archive --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "empty", "older", "older and new", "emptied", "lost and far above"])
@pytest.mark.parametrize("by", ["streams", "streamsPattern"])
def test_what_a_stream_has_lost_comes_from_the_archive(
    server: Server, client: redis.Redis, tmp_path: Path, how: str, by: str
) -> None:
    """The stream was created again, or its server was restored to an older state."""
    archiver = Archiver(client, tmp_path / "a")
    add(client, range(300))
    archiver.archive(250, trim=False)
    lose(client, how)
    rest = {"older": range(250), "older and new": [*range(250), 1000], "lost and far above": [*range(250), 2000]}
    expected = sorted(rest.get(how, range(250)))
    assert numbers(read(reader(server, tmp_path / "a", minPartitions="3", **named(by)))) == expected
    bounds = {"startingOffsets": f"{START + 100 * HOUR}-0", "endingOffsets": f"{START + 200 * HOUR}-0"}
    within = [n for n in expected if 100 < n <= 200 or n == 1000]
    assert numbers(read(reader(server, tmp_path / "a", **bounds, **named(by)))) == within


def named(by: str) -> dict[str, str]:
    """The option that names stream s."""
    return {"streamsPattern": "[s]"} if by == "streamsPattern" else {}


def lose(client: redis.Redis, how: str) -> None:
    if how == "emptied":
        client.xtrim("s", maxlen=0)
        client.delete("s")
        client.xgroup_create("s", "other", "0", mkstream=True)
        client.xgroup_destroy("s", "other")
        return
    client.delete("s")
    if how == "empty":
        client.xgroup_create("s", "other", "0", mkstream=True)
    elif how.startswith("older"):
        add(client, range(20, 120))
    if how == "older and new":
        client.xadd("s", {"n": 1000}, id=f"{START + 150 * HOUR}-7")
    if how == "lost and far above":
        client.xadd("s", {"n": 2000}, id=f"{START + 900 * HOUR}-0")


def test_a_missing_stream_of_several_is_read_from_the_archive_if_it_is_there(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    archivers = [Archiver(client, tmp_path / "a", stream) for stream in "st"]
    add(client, range(20), "s")
    add(client, range(100, 120), "t")
    for number, archiver in enumerate(archivers):
        archiver.number = 10 * number
        archiver.archive(10)
    client.delete("t")
    assert numbers(read(reader(server, tmp_path / "a", streams="s,t"))) == [*range(20), *range(100, 110)]
    with pytest.raises(StreamMissingError, match="'u'"):
        reader(server, tmp_path / "a", streams="s,u").partitions()


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_path_that_is_no_archive_is_refused(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.xadd("s", {"n": 1}, id="5-0")
    with pytest.raises(ArchiveError, match="is not a folder here"):
        reader(server, tmp_path / "absent").partitions()
    (tmp_path / "other" / "data").mkdir(parents=True)
    with pytest.raises(ArchiveError, match="'data', which the job archive does not write"):
        reader(server, tmp_path / "other").partitions()
    orc = tmp_path / "orc" / "date=1970-01-01" / "batch=b-1"
    orc.mkdir(parents=True)
    (orc / "part.orc").write_bytes(b"ORC")
    with pytest.raises(ArchiveError, match="is not Parquet"):
        reader(server, tmp_path / "orc").partitions()


def test_a_damaged_file_is_an_error(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    archiver = Archiver(client, tmp_path / "a")
    add(client, range(10))
    archiver.archive(10)
    file = next((tmp_path / "a").rglob("*.parquet"))
    file.write_bytes(b"no Parquet")
    with pytest.raises(ArchiveError, match="is damaged"):
        read(reader(server, tmp_path / "a"))


def test_the_option_obeys_the_list_of_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RSTREAM_ALLOW_FILES", str(tmp_path))
    assert BatchSourceOptions.parse({"streams": "s", "archivePath": str(tmp_path / "a")}).archive_path
    for path in ("/etc", "s3://bucket/a", f"{tmp_path}/../b"):
        with pytest.raises(NotAllowedError, match="archivePath"):
            BatchSourceOptions.parse({"streams": "s", "archivePath": path})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotAllowedError, match="archivePath s3://bucket/a"):
        BatchSourceOptions.parse({"streams": "s", "archivePath": "s3://bucket/a"})


# Each leads to the folder `secret` beside the listed folder `allowed`, or to no folder.
AROUND = (
    "{top}/allowed/%2e%2e/secret", "file://{top}/allowed/%2e%2e/secret", "file://{top}/allowed/..%2Fsecret",
    "file://{top}/allowed/%2E%2E%2Fsecret", "file://{top}/allowed/%252e%252e/secret", "file://localhost{top}/secret",
    "FILE://{top}/allowed/%2e%2e/secret", "{top}/allowed/link", "file://{top}/allowed/link", "file:{top}/secret",
    "file:///{top}/allowed/../secret", "{top}/allowed/../secret",
)  # fmt: skip


@pytest.mark.parametrize("path", AROUND)
def test_the_folder_that_is_read_is_the_one_that_the_list_is_asked_for(
    path: str, server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add(client, range(10))
    Archiver(client, tmp_path / "secret").archive(10)
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    monkeypatch.chdir(tmp_path / "allowed")
    monkeypatch.setenv("RSTREAM_ALLOW_FILES", str(tmp_path / "allowed"))
    with pytest.raises((NotAllowedError, ArchiveError)):
        read(reader(server, path.format(top=tmp_path)))


def test_a_file_uri_names_a_folder(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    add(client, range(10))
    Archiver(client, tmp_path / "a b%").archive(10)
    for uri in (f"file://{tmp_path}/a%20b%25", f"file://localhost{tmp_path}/a%20b%25"):
        assert numbers(read(reader(server, uri))) == list(range(10))
    for uri in ("file://host/a", "file:///a?b", "file:///a#b", "file://"):
        with pytest.raises(InvalidOptionError, match="archivePath=.*must be a path, or a URI like file:///folder"):
            BatchSourceOptions.parse({"streams": "s", "archivePath": uri})


def test_the_date_of_a_file_is_that_of_its_own_folder(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """Such as a copy of the archive in a folder of the day of the copy."""
    add(client, range(10))
    (tmp_path / "date=2099-01-01").mkdir()
    Archiver(client, tmp_path / "date=2099-01-01" / "a").archive(10)
    assert numbers(read(reader(server, tmp_path / "date=2099-01-01" / "a"))) == list(range(10))


# -- Delta -------------------------------------------------------------------------------------------------------------


def test_a_delta_table_needs_its_package(
    server: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "_delta_log").mkdir(parents=True)
    client.xadd("s", {"n": 1}, id="5-0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ArchiveError, match=r"pip install 'spark-streams\[delta\]'"):
        reader(server, tmp_path / "a").partitions()


def test_a_delta_table_is_read(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    archiver = Archiver(client, tmp_path / "unused")
    add(client, range(100))
    for first in (0, 40):
        rows = [
            {"stream": "s", "id": f"{START + n * HOUR}-0", "timestamp": None, "fields": [("n", str(n))],
             "date": datetime.date.fromordinal(DAY_0 + (START + n * HOUR) // (24 * HOUR))}
            for n in range(first, first + 40)
        ]  # fmt: skip
        dated = pa.Table.from_pylist(rows, SCHEMA.append(pa.field("date", pa.date32())))
        deltalake.write_deltalake(str(tmp_path / "a"), dated, mode="append", partition_by=["date"])
    archiver.read(80)
    archiver.trim()
    assert numbers(read(reader(server, tmp_path / "a", minPartitions="4"))) == list(range(100))
    deltalake.DeltaTable(str(tmp_path / "a")).optimize.compact()  # old files stay until VACUUM
    assert numbers(read(reader(server, tmp_path / "a"))) == list(range(100))


# -- tasks -------------------------------------------------------------------------------------------------------------


@pytest.mark.in_turn
@given(
    st.lists(st.tuples(IDS, IDS), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 10), st.integers(1, 1000)), max_size=10),
    st.integers(1, 500),
)
def test_tasks_cover_each_range_once(
    bounds: list[tuple[StreamId, StreamId]], sizes: list[tuple[int, int]], task_bytes: int
) -> None:
    ranges = [Range(f"s{n}", min(pair), max(pair), 1) for n, pair in enumerate(bounds)]
    files = [ArchiveFile("f", size, day * 24 * HOUR) for day, size in sizes]
    tasks = cut_by_date(files, ranges, task_bytes)
    for whole in ranges:
        parts = [part for task in tasks for part in task.ranges if part.stream == whole.stream]
        ends = [whole.after, *(part.last for part in parts)]
        assert [part.after for part in parts] == ends[:-1]
        assert ends[-1] == whole.last


def test_columns_of_a_group_stay_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="_deliveries"):
        reader(server, tmp_path, pa.schema([("_deliveries", pa.int32())]))
