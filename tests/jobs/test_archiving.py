"""Reads and queries with `archivePath` while the real job archives, trims, and is killed: every entry comes once."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import BatchReader
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.spark.data_source import ReadMaxRows
from spark_streams.jobs.job import Job
from spark_streams.jobs.parts.archiving import HEX, Trim
from spark_streams.jobs.parts.source_and_sink import Source
from tests.connector.source.test_history_reader import Query
from tests.jobs.work import CONF, Work, call
from tests.trimming import nodes_of_one_entry
from tools.driving import ALL, stop_all
from tools.servers.server import Server

SETTINGS = (
    "trim.every=100ms", "job.trigger=200ms", "source.maxEntriesPerTrigger=150",
)  # fmt: skip


def read(server: Server, path: Path) -> list[int]:
    checked = BatchSourceOptions.parse(
        {"url": server.url, "streams": "flights", "archivePath": str(path), "entriesPerPartition": "100"}
    )
    one = BatchReader(checked, Columns(pa.schema([("n", pa.int64())]), True, checked.mode))
    partitions = one.partitions()
    time.sleep(0.3)  # the job goes on between plan and tasks
    return [n for partition in partitions for batch in one.read(partition) for n in batch["n"].to_pylist()]


def files_in(path: Path) -> int:
    """Number of Parquet files; the job removes folders meanwhile."""
    return sum(name.endswith(".parquet") for _, _, names in os.walk(path) for name in names)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("small_nodes")
def test_each_read_shows_each_entry_once_while_the_job_runs_and_is_killed(server: Server, tmp_path: Path) -> None:
    work = Work(tmp_path, server)
    path = tmp_path / "archive"
    path.mkdir()
    added, reads = 0, 0
    with server.client() as client, work:
        client.flushall()
        for life in range(3):
            run = work.start(work.arguments("archive", *SETTINGS))
            # Kills fall into different moments: once batches of this life are archived, after another pause each time.
            files = files_in(path)
            begin = time.monotonic()
            while files_in(path) < files + 6 or time.monotonic() - begin < 2 + life * 0.37:
                assert run.process.poll() is None, run.output_file.read_text()[-3000:]
                assert time.monotonic() - begin < 240
                with client.pipeline(transaction=False) as pipe:
                    for n in range(added, added + 40):
                        pipe.xadd("flights", {"n": n})
                    pipe.execute()
                added += 40
                assert sorted(read(server, path)) == list(range(added))
                reads += 1
            run.kill()
            assert sorted(read(server, path)) == list(range(added))
        trimmed = added - client.xlen("flights")
    print(f"{added} entries, {trimmed} trimmed, {reads} reads")
    assert trimmed > 0


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.usefixtures("small_nodes")
def test_queries_that_begin_while_the_job_runs_read_each_entry_once(server: Server, tmp_path: Path) -> None:
    """Each query is stopped after every few batches, and goes on from its checkpoint. Then its group lets the job trim
    what it has read."""
    work = Work(tmp_path, server)
    path = tmp_path / "archive"
    path.mkdir()
    added, batches = 0, 0
    queries: list[Query] = []
    with server.client() as client, work:
        client.flushall()
        for life in range(3):
            run = work.start(work.arguments("archive", *SETTINGS))
            files = files_in(path)
            begin = time.monotonic()
            queries.append(Query(server, path, ReadMaxRows(70), streams="flights", group=f"late{life}"))
            while files_in(path) < files + 6 or time.monotonic() - begin < 2 + life * 0.37:
                assert run.process.poll() is None, run.output_file.read_text()[-3000:]
                assert time.monotonic() - begin < 240
                with client.pipeline(transaction=False) as pipe:
                    for n in range(added, added + 40):
                        pipe.xadd("flights", {"n": n})
                    pipe.execute()
                added += 40
                time.sleep(0.3)
                if files_in(path) > files + 2:
                    for query in queries:
                        query.run(batches=2)
                        batches += 2
                        stop_all()
            run.kill()
        for query in queries:
            query.limit = ALL
            query.run()
            stop_all()
            assert sorted(query.numbers) == list(range(added))
        history = [sum("history" in end for end in query.log) for query in queries]
        trimmed = added - client.xlen("flights")
    print(f"{added} entries, {trimmed} trimmed, {batches} batches, of the archive {history}")
    assert trimmed > 0
    assert all(history)


# The archive keeps every byte of what it trims, also with fields as text; its form is the one that tables have.


ENTRIES: list[list[bytes]] = [
    [b"n", b"1", b"text", "Ærø 🦊\r\n".encode()],
    [b"n", b"\xff\xfe", b"", b""],
    [b"\xc3", b"name", b"n", b"2", b"n", b"3"],  # a name that is not UTF-8
    [b"n", b"1", b"n", b"2"],  # a name twice
    [HEX.encode(), b"6E 31"],  # looks like the form itself
    [b"n", b"\xed\xa0\x80", b"m", b"\xef\xbf\xbd"],  # a surrogate; U+FFFD as it is
]


def kept_bytes(fields: list[tuple[str, str]]) -> list[bytes]:
    """An entry's names and values, as docs/reference/jobs.md says."""
    if fields[0][0] == HEX:
        return [bytes.fromhex(word) for word in fields[0][1].split(" ")]
    return [word.encode() for field in fields for word in field]


@pytest.mark.spark
@pytest.mark.in_turn
def test_nothing_is_trimmed_that_is_not_kept_byte_for_byte(server: Server, tmp_path: Path) -> None:
    """Behind what an earlier version has written, whose columns stay."""
    work = Work(tmp_path, server)
    old = tmp_path / "archive" / "date=2020-01-01" / "batch=aaaa-0"
    old.mkdir(parents=True)
    schema = pa.schema([
        ("stream", pa.string()), ("id", pa.string()), ("timestamp", pa.timestamp("us", "UTC")),
        ("fields", pa.map_(pa.string(), pa.string())),
    ])  # fmt: skip
    before = {"stream": "flights", "id": "1-1", "timestamp": None, "fields": [("n", "old")]}
    pq.write_table(pa.Table.from_pylist([before], schema), old / "one.parquet")
    with server.client() as client:
        client.flushall()
        for entry in ENTRIES:
            client.execute_command("XADD", "flights", "*", *entry)
        with work:
            work.start(work.arguments("archive")).finish()
        assert client.xlen("flights") == 0
    files = sorted((tmp_path / "archive").rglob("*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    types = [table.schema.field("fields").type for table in tables]
    assert {(one.key_type, one.item_type) for one in types} == {(pa.string(), pa.string())}
    rows = sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["id"])
    assert [row["fields"] for row in rows[:2]] == [[("n", "old")], [("n", "1"), ("text", "Ærø 🦊\r\n")]]
    assert [kept_bytes(row["fields"]) for row in rows[1:]] == ENTRIES


def test_json_with_binary_fields_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's writer of JSON replaces names that are binary."""
    settings = ("--set", "table.format=json", "--set", "table.fields=binary")
    assert (
        call(
            monkeypatch,
            "archive",
            "--config",
            str(CONF / "archive.toml"),
            "--check",
            *settings,
        )
        == 2
    )
    said = capsys.readouterr().err
    assert said.startswith('archive: [RSTREAM_CONFIG] table.format "json" cannot hold names of fields as bytes: ')


# What the archive trims: all that every group has acknowledged, however much that is, and nothing else.


TRIMMED = 25_000  # a server trims 10,000 at a time


def made(server: Server, keep: int | None) -> Trim:
    """The trimming of an archive of stream s."""
    rule = {"every": "1ms", **({} if keep is None else {"keep_entries": keep})}
    job = Job("archive", {"url": server.url, "source": {"streams": "s", "group": "archive"}, "trim": rule}, Console())
    trim = Trim(job, Source(job))
    trim.open(["s"])
    return trim


@pytest.mark.parametrize(
    ("keep", "exactly", "left"), [(None, True, 1000), (None, False, 1000), (3000, True, 3000), (500, True, 1000)]
)
def test_all_that_is_acknowledged_goes(server: Server, keep: int | None, exactly: bool, left: int) -> None:
    with server.client() as client, nodes_of_one_entry(server) if exactly else contextlib.nullcontext():
        with client.pipeline(transaction=False) as sent:
            for number in range(TRIMMED):
                sent.xadd("s", {"n": number})
            sent.execute()
        for group in ("archive", "other"):
            client.xgroup_create("s", group, "0")
            client.execute_command(
                "XREADGROUP", "GROUP", group, "c", "COUNT", TRIMMED - 1000, "NOACK", "STREAMS", "s", ">"
            )
        trim = made(server, keep)
        time.sleep(0.01)
        trim.trim_if_due()
        node = 0 if exactly else 100
        assert left <= client.xlen("s") <= left + node
        assert trim.summary()["trimmed"] == TRIMMED - client.xlen("s")


@pytest.mark.usefixtures("small_nodes")
def test_it_says_why_nothing_was_trimmed(server: Server) -> None:
    def why(keep: int | None = None) -> object:
        trim = made(server, keep)
        trim.trim()
        return trim.summary().get("not_trimmed", "")

    with server.client() as client:
        for group in ("archive", "other"):
            client.xgroup_create("s", group, "0", mkstream=True)
        assert why() == ""
        for n in range(5):
            client.xadd("s", {"n": n}, id=f"{n + 1}-0")
        client.execute_command("XREADGROUP", "GROUP", "archive", "spark", "NOACK", "STREAMS", "s", ">")
        assert why() == "s: group 'other' has not read 5 entries"
        client.xreadgroup("other", "bob", {"s": ">"})
        assert why() == "s: group 'other' has not acknowledged 5 entries"
        client.xack("s", "other", *[f"{n + 1}-0" for n in range(5)])
        assert why(keep=10) == "s: [trim] keeps its 5 entries (keep_entries, keep_for)"
        assert why() == ""
        assert client.xlen("s") == 0
