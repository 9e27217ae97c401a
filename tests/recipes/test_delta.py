"""Tables that the package deltalake writes, by the jobs: each row once, also where a batch is written again."""

from __future__ import annotations

import datetime
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from spark_streams import register
from spark_streams.errors import TableError
from spark_streams.jobs import archive, etl
from spark_streams.jobs.job import Job
from spark_streams.jobs.output.deltalake_table import _Batch, _writer
from spark_streams.jobs.output.table import TableConfig
from tests.recipes.conftest import RECIPES, recipe_of
from tools.servers.server import Server

pytestmark = pytest.mark.spark

ETL = """
url = "{url}"
source = {{streams = "orders", group = "etl", startingOffsets = "earliest", maxEntriesPerTrigger = 7}}
columns = {{n = "INT", who = "STRING", amount = "DECIMAL(10,2)", at = "TIMESTAMP"}}
dead_letters.stream = "orders:dead"
job = {{checkpoint = "{folder}/checkpoint"}}
table = {{format = "deltalake", path = "{folder}/all", partition_by = ["who"]}}

[[output]]
name = "large"
where = "amount >= 10"
select = ["n"]
table = {{format = "deltalake", path = "{folder}/large"}}
"""
ARCHIVE = """
url = "{url}"
source = {{streams = "orders", group = "archive"}}
table = {{format = "deltalake", path = "{folder}/archive", fields = "binary"}}
job = {{checkpoint = "{folder}/archive-checkpoint"}}
trim.approximate = false
"""
AT = datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC)
WHO = ["it's / a=b % \\ ", "ann"]


def run(spark: SparkSession, program: Any, config: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    register(spark)
    monkeypatch.setattr(Job, "session", lambda _job: spark)
    job = Job("job", tomllib.loads(config), Console(quiet=True))
    program.body(job)
    return job.summary


def rows_in(path: Path) -> list[dict[str, Any]]:
    return recipe_of("delta_table").rows_in(str(path))


# Files that are slow to be let go of: a thread that still holds one when Python ends is seen.
READS = """
import sys, time
import pyarrow as pa
from deltalake.fs import fs_handler

class Slow:
    def __init__(self, file):
        self.file = file
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __del__(self):
        time.sleep(0.5)

fs_handler.DeltaStorageHandler.open_input_file = lambda self, path: pa.PythonFile(
    Slow(self._handler.open_input_file(path))
)
sys.path.insert(0, sys.argv[1])
from delta_table import rows_in
print(rows_in(sys.argv[2]), flush=True)
"""


def test_a_program_that_has_read_a_table_ends_without_an_abort(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path, pa.table({"n": [1]}))
    command = [sys.executable, "-c", READS, str(RECIPES), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "[{'n': 1}]\n"), ended.stderr


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.mark.long
def test_the_jobs_write_each_row_once(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended between two outputs, behind Delta's commit of the first and before Spark's; and run again."""
    with server.client() as client:
        for n in range(20):
            client.xadd("orders", {"n": n, "who": WHO[n % 2], "amount": f"{n}.50", "at": "2026-01-01T10:00:00Z"})
        client.xadd("orders", {"n": "x"})
    config = ETL.format(url=server.url, folder=tmp_path)
    write = etl.Batches._write_output

    def killed(self: Any, output: Any, place: Any, good: Any, count: int, batch: int) -> None:
        if (output.name, batch) == ("large", 1):
            raise KilledError
        write(self, output, place, good, count, batch)

    monkeypatch.setattr(etl.Batches, "_write_output", killed)
    with pytest.raises(Exception, match="KilledError"):
        run(spark, etl, config, monkeypatch)
    monkeypatch.setattr(etl.Batches, "_write_output", write)
    assert (len(rows_in(tmp_path / "all")), len(rows_in(tmp_path / "large"))) == (14, 0)
    told = run(spark, etl, config, monkeypatch)
    assert (told["dead"], told["entries"]) == (1, 14)
    rows = sorted(rows_in(tmp_path / "all"), key=lambda row: row["n"])
    assert [(row["n"], row["who"], str(row["amount"]), row["at"]) for row in rows] == [
        (n, WHO[n % 2], f"{n}.50", AT) for n in range(20)
    ]
    assert sorted(row["n"] for row in rows_in(tmp_path / "large")) == list(range(10, 20))
    run(spark, archive, ARCHIVE.format(url=server.url, folder=tmp_path), monkeypatch)
    kept = rows_in(tmp_path / "archive")
    assert sorted(dict(row["fields"])[b"n"] for row in kept) == sorted([*(b"%d" % n for n in range(20)), b"x"])
    with server.client() as client:
        assert client.xlen("orders") == 0


def pages(*numbers: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": pa.array(numbers, pa.int32())})


def test_of_two_tasks_that_write_one_batch_the_table_takes_one(tmp_path: Path) -> None:
    """Also where the second one had looked before the first one had written."""
    from deltalake import DeltaTable

    path, schema = str(tmp_path / "table"), pa.schema({"n": pa.int32()})
    DeltaTable.create(path, schema)
    write = _writer(_Batch(path, [], {}, "query:table", 0), schema)
    other = _writer(_Batch(path, [], {}, "query:late", 0), schema)

    def others() -> list[Any]:
        return [page["written"].to_pylist() for page in (*write(pages(1, 2)), *other(pages(3)))]

    def overtaken() -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor() as beside:  # deltalake is in the midst of a write in this one
            assert beside.submit(others).result() == [[True], [True]]
        yield from pages(1, 2)

    assert len(list(write(overtaken()))) == 1
    assert [page["written"].to_pylist() for page in write(pages(1, 2))] == [[False]]
    assert sorted(row["n"] for row in rows_in(tmp_path / "table")) == [1, 2, 3]
    at_least_once = _writer(_Batch(path, [], {}, None, 0), schema)
    list(at_least_once(pages(4)))
    list(at_least_once(pages(4)))
    assert sorted(row["n"] for row in rows_in(tmp_path / "table")) == [1, 2, 3, 4, 4]


def test_a_table_of_other_partitions_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"format": "deltalake", "path": str(tmp_path / "t")}
    write(spark.range(3), settings)
    with pytest.raises(TableError, match=r"is partitioned by nothing, but the job writes it by id: set partition_by"):
        write(spark.range(3), {**settings, "partition_by": ["id"]})
    assert len(rows_in(tmp_path / "t")) == 3


def test_the_columns_of_a_table_change(spark: SparkSession, tmp_path: Path) -> None:
    """New and missing columns, and types, by the rules of tests/spark/jobs/test_changed_columns.py."""
    settings: dict[str, Any] = {"format": "deltalake", "path": str(tmp_path / "t")}
    write(spark.sql("SELECT 1L AS id, CAST(2.5 AS DECIMAL(10, 2)) AS amount, 'n' AS region"), settings)
    changed = spark.sql("SELECT 'x' AS note, 2 AS id, CAST(3.5 AS DECIMAL(8, 1)) AS amount")
    with pytest.raises(
        TableError, match=r"lacks the rows' column `note` STRING: .*ADD COLUMNS \(`note` STRING\).*schema = \"merge\""
    ):
        write(changed, settings)
    write(changed, {**settings, "schema": "merge"})
    write(spark.sql("SELECT 3L AS id"), settings)
    shown = [{**row, "amount": row["amount"] and str(row["amount"])} for row in rows_in(tmp_path / "t")]
    assert sorted(shown, key=lambda row: row["id"]) == [
        {"id": 1, "amount": "2.50", "region": "n", "note": None},
        {"id": 2, "amount": "3.50", "region": None, "note": "x"},
        {"id": 3, "amount": None, "region": None, "note": None},
    ]


def write(rows: DataFrame, settings: dict[str, Any]) -> None:
    """Write the rows as a batch that no earlier call has written."""
    table = TableConfig.parse({**settings, "once": False}, "table", {})
    table.check_format(rows.sparkSession)
    table.open(rows.sparkSession, "table", table.fit(rows.sparkSession, rows.schema)).write(rows, 0)
