"""Reads with `archivePath` while the real job archives, trims, and is killed: each shows every entry once."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

from spark_streams.options.source_options import BatchSourceOptions
from spark_streams.source.batch_reader import BatchReader
from spark_streams.source.rows.columns import Columns
from tests.jobs.work import Work
from tools.servers.server import Server

SETTINGS = (
    "trim.approximate=false", "trim.every=100ms", "job.trigger=200ms", "source.maxEntriesPerTrigger=150",
)  # fmt: skip


def read(server: Server, path: Path) -> list[int]:
    checked = BatchSourceOptions.parse(
        {"url": server.url, "streams": "flights", "archivePath": str(path), "entriesPerPartition": "100"}
    )
    one = BatchReader(checked, Columns(pa.schema([("n", pa.int64())]), True, checked.mode))
    partitions = one.partitions()
    time.sleep(0.3)  # the job goes on between plan and tasks
    return [n for partition in partitions for batch in one.read(partition) for n in batch["n"].to_pylist()]


@pytest.mark.spark
@pytest.mark.long
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
            files = len(list(path.rglob("*.parquet")))
            begin = time.monotonic()
            while len(list(path.rglob("*.parquet"))) < files + 6 or time.monotonic() - begin < 2 + life * 0.37:
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
