"""Reads and queries with `archivePath` while the real job archives, trims, and is killed: every entry comes once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import BatchReader
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.connector.source.test_history_reader import Query
from tests.jobs.work import Work
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
