"""Job load: each row of the files is in the stream once, in the order of its file, and a file is loaded once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from rich.console import Console

import spark_streams
from spark_streams.connector.errors import JobError, StreamMissingError
from spark_streams.jobs.job import ACCESS_SHAPE, CheckedError, Job
from spark_streams.jobs.job_config import load
from spark_streams.jobs.programs.load import PROGRAM
from tools.servers.server import Server

pytestmark = pytest.mark.spark
Load = Callable[..., dict[str, Any]]
MONTH = 30 * 86_400


@pytest.fixture
def run(server: Server, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Runs the job with these settings; its summary."""

    def session(job: Job) -> SparkSession:
        job.spark = spark.newSession()
        spark_streams.register(job.spark)
        return job.spark

    def run(*settings: str, check: bool = False) -> dict[str, Any]:
        given = [
            f"url={server.url}", "sink.stream=out", f"input.path={tmp_path}/in", "input.schema=n INT",
            f"job.checkpoint={tmp_path}/checkpoint", *settings,
        ]  # fmt: skip
        job = Job(
            "load",
            load(None, given, {**ACCESS_SHAPE, **PROGRAM.shape}, PROGRAM.required),
            Console(quiet=not check, soft_wrap=True),
        )
        job.check = check
        PROGRAM.body(job)
        return job.summary

    monkeypatch.setattr(Job, "session", session)
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


def write(path: Path, numbers: range, age: float = 0) -> None:
    """A file of one column without a head. age: seconds since it was changed."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{number}\n" for number in numbers))
    then = time.time() - age
    os.utime(path, (then, then))


def order(server: Server) -> list[int]:
    """The stream's rows, in its order."""
    with server.client() as client:
        return [int(fields[b"n"]) for _, fields in client.xrange("out")]


def counts(summary: dict[str, Any]) -> tuple[int, int, int]:
    return summary["entries"], summary["loaded_before"], summary["left"]


@pytest.mark.parametrize("name", ["in", "in/a b.csv", "in/*.csv"])
def test_a_file_is_loaded_once_in_its_order(run: Load, server: Server, folder: Path, name: str) -> None:
    """A folder, one file, or a pattern: the second run adds nothing, and in a folder what has come to it."""
    write(folder / "a b.csv", range(5000), age=60)
    path = f"input.path={folder.parent}/{name}"
    assert counts(run(path, "sink.chunkSize=64")) == (5000, 0, 0)
    assert counts(run(path)) == (0, 5000, 0)
    assert order(server) == list(range(5000))
    write(folder / "c.csv", range(5000, 5010))
    new = 0 if name.endswith("b.csv") else 10
    assert counts(run(path)) == (new, 5000, 0)
    assert order(server) == list(range(5000 + new))


def test_the_oldest_file_comes_first_and_none_is_too_old(run: Load, server: Server, folder: Path) -> None:
    """Spark's file source passes over files that are a week older than the newest one, unless it is told otherwise."""
    write(folder / "a.csv", range(10, 20), age=60)
    write(folder / "b.csv", range(10), age=2 * MONTH)
    assert counts(run()) == (20, 0, 0)
    write(folder / "c.csv", range(20, 30), age=MONTH)
    assert counts(run()) == (10, 20, 0)
    assert order(server) == list(range(30))


def test_folders_may_be_columns(run: Load, server: Server, folder: Path) -> None:
    write(folder / "month=1" / "a.csv", range(10), age=60)
    write(folder / "month=2" / "a.csv", range(10, 20))
    assert counts(run()) == (20, 0, 0)
    with server.client() as client:
        rows = [(int(fields[b"n"]), int(fields[b"month"])) for _, fields in client.xrange("out")]
    assert rows == [(number, 1 + number // 10) for number in range(20)]


def test_a_format_that_has_a_schema_needs_none(run: Load, server: Server, folder: Path, spark: SparkSession) -> None:
    spark.range(20).withColumnRenamed("id", "n").coalesce(1).write.mode("overwrite").parquet(str(folder))
    assert counts(run("input.format=parquet", "input.schema=")) == (20, 0, 0)
    assert order(server) == list(range(20))


def test_a_file_that_was_changed_after_it_was_loaded_is_refused(run: Load, server: Server, folder: Path) -> None:
    """What the message says helps: its new rows in a file of their own, the changed file elsewhere."""
    write(folder / "a.csv", range(10), age=60)
    run()
    write(folder / "a.csv", range(15))
    with pytest.raises(JobError, match=r"in/a\.csv was changed at 20.*move the changed file out of input.path"):
        run()
    assert order(server) == list(range(10))
    (folder / "a.csv").rename(folder.parent / "a.csv")
    write(folder / "b.csv", range(10, 15))
    assert counts(run()) == (5, 0, 0)
    assert order(server) == list(range(15))


def test_a_rate_is_kept(run: Load, server: Server, folder: Path) -> None:
    """All but the first ten rows wait."""
    write(folder / "a.csv", range(60))
    began = time.monotonic()
    assert counts(run("sink.rowsPerSecond=50")) == (60, 0, 0)
    assert time.monotonic() - began >= 1
    assert order(server) == list(range(60))


def test_a_check_loads_nothing(run: Load, server: Server, folder: Path) -> None:
    write(folder / "a.csv", range(10))
    with pytest.raises(CheckedError):
        run(check=True)
    assert order(server) == []


@pytest.mark.parametrize("is_cut", [True, False], ids=["amid the file", "before Spark's commit"])
def test_a_file_that_grows_while_its_load_is_interrupted_is_loaded_as_it_is_now(
    run: Load, server: Server, folder: Path, is_cut: bool
) -> None:
    """Then no run says that rows are missing. If all rows of the file had been written, the ledger refuses others."""
    rows = 25_000
    write(folder / "a.csv", range(rows), age=60)
    if is_cut:
        with (folder / "a.csv").open("a") as file:
            file.write("broken\n")
        with pytest.raises(StreamingQueryException):
            run("input.options.mode=FAILFAST")
        assert 0 < len(order(server)) < rows
    else:
        run()
        for name in ("0", ".0.crc"):
            (folder.parent / "checkpoint" / "commits" / name).unlink()
    write(folder / "a.csv", range(rows + 5))
    if not is_cut:  # the ledger has the batch as complete
        with pytest.raises(Exception, match="its 25005 rows are not the 25000 that were written then"):
            run()
        return
    run()
    assert order(server) == list(range(rows + 5))
    assert counts(run()) == (0, rows + 5, 0)
    write(folder / "a.csv", range(rows + 6), age=-60)
    with pytest.raises(JobError, match="was changed at"):
        run()


def test_another_stream_gets_all_files_by_another_checkpoint_only(run: Load, server: Server, folder: Path) -> None:
    """Otherwise it would have none of the files that the checkpoint names, and the summary would call them loaded."""
    write(folder / "a.csv", range(10), age=60)
    write(folder / "empty.csv", range(0), age=30)  # whose batch leaves no record in the stream
    assert counts(run("sink.stream=other")) == (10, 0, 0)
    assert counts(run("sink.stream=other")) == (0, 10, 0)
    for check in (True, False):
        with pytest.raises(JobError, match="has loaded files into other at .* into out at .* another job.checkpoint"):
            run(check=check)
    assert counts(run(f"job.checkpoint={folder.parent}/new")) == (10, 0, 0)
    assert order(server) == list(range(10))


def test_a_stream_that_is_gone_is_not_taken_for_a_loaded_one(run: Load, server: Server, folder: Path) -> None:
    """As that of a bundled engine that has ended. The summary called all rows loaded."""
    write(folder / "a.csv", range(3))
    assert counts(run()) == (3, 0, 0)
    with server.client() as client:
        client.delete("out")
    for check in (True, False):
        with pytest.raises(StreamMissingError, match="stream out at .* is gone, and .* has loaded 3 rows into it.*Set"):
            run(check=check)
    with server.client() as client:
        client.xgroup_create("out", "etl", mkstream=True)
    write(folder / "b.csv", range(3, 5))
    assert counts(run()) == (2, 3, 0)
    assert order(server) == [3, 4]


def test_a_stream_that_has_moved_goes_on_after_its_checkpoint_is_told(run: Load, server: Server, folder: Path) -> None:
    """As the message says."""
    write(folder / "a.csv", range(10), age=60)
    run()
    metadata = folder.parent / "checkpoint" / "metadata"
    metadata.write_text(metadata.read_text().replace("out at ", "out at former-"))
    (metadata.parent / ".metadata.crc").unlink()
    with pytest.raises(JobError, match='replace "into" in .*/metadata, and delete .*/.metadata.crc'):
        run()
    metadata.write_text(metadata.read_text().replace("former-", ""))
    write(folder / "b.csv", range(10, 15))
    assert counts(run()) == (5, 10, 0)
    assert order(server) == list(range(15))


def test_rows_that_spark_drops_are_no_rows_of_a_file(run: Load, server: Server, folder: Path) -> None:
    write(folder / "a.csv", range(10), age=60)
    with (folder / "a.csv").open("a") as file:
        file.write("broken\n")
    assert counts(run("input.options.mode=dropMalformed")) == (10, 0, 0)
    assert counts(run("input.options.mode=dropMalformed")) == (0, 10, 0)


def test_a_check_reads_no_checkpoint_below_its_own(
    run: Load, server: Server, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "a.csv", range(10))
    run("sink.stream=other", f"job.checkpoint={folder.parent}/checkpoint/below")
    with pytest.raises(CheckedError):
        run(check=True)
    shown = " ".join(capsys.readouterr().out.split())
    assert "loaded before 0" in shown
    assert "(continues)" not in shown
