"""Tables that deltalake and pyiceberg write, by the jobs: each row once, also where a batch is written again."""

from __future__ import annotations

import datetime
import os
import re
import struct
import subprocess
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from spark_streams import register
from spark_streams.connector.errors import TableError
from spark_streams.jobs.job import Job
from spark_streams.jobs.output import deltalake_table, pyiceberg_table
from spark_streams.jobs.output.deltalake_table import DeltalakeTable
from spark_streams.jobs.output.owned_table import Compaction
from spark_streams.jobs.output.ownership import Claimant
from spark_streams.jobs.output.table_config import TableConfig
from spark_streams.jobs.parts.outputs import JobOutput
from spark_streams.jobs.programs import archive, etl
from tests.legs.recipes.conftest import RECIPES
from tests.legs.recipes.tables import KINDS, Deltalake, Kind, Pyiceberg
from tools.servers.server import Server

pytestmark = pytest.mark.spark

ETL = """
url = "{url}"
source = {{streams = "orders", group = "etl", startingOffsets = "earliest", maxEntriesPerTrigger = 7}}
columns = {{n = "INT", who = "STRING", amount = "DECIMAL(10,2)", at = "TIMESTAMP"}}
dead_letters.stream = "orders:dead"
job = {{checkpoint = "{folder}/checkpoint"}}
table = {{{all}, partition_by = ["who"]}}

[[output]]
name = "large"
where = "amount >= 10"
select = ["n"]
table = {{{large}}}
"""
ALONE = """
url = "{url}"
source = {{streams = "orders", group = "etl", startingOffsets = "earliest", maxEntriesPerTrigger = 5}}
columns = {{n = "INT", who = "STRING"}}
dead_letters.stream = "orders:dead"
job = {{checkpoint = "{folder}/checkpoint"}}
table = {{{table}}}
"""
ARCHIVE = """
url = "{url}"
source = {{streams = "orders", group = "archive"}}
table = {{{archive}, fields = "binary"}}
job = {{checkpoint = "{folder}/archive-checkpoint"}}
"""
AT = datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC)
WHO = ["it's / a=b % \\ ", "ann"]


def run(spark: SparkSession, program: Any, config: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    register(spark)
    monkeypatch.setattr(Job, "session", lambda _job: spark)
    job = Job("job", tomllib.loads(config), Console(quiet=True))
    program.PROGRAM.body(job)
    return job.summary


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return KINDS[request.param](tmp_path)


def toml(settings: dict[str, Any]) -> str:
    """The keys as a part of a table in braces."""
    values = {key: f"{{{toml(value)}}}" if isinstance(value, dict) else f'"{value}"' for key, value in settings.items()}
    return ", ".join(f"{key} = {value}" for key, value in values.items())


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
    spark: SparkSession, server: Server, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended between two outputs, behind the table's commit of the first and before Spark's; and run again."""
    with server.client() as client:
        for n in range(20):
            client.xadd("orders", {"n": n, "who": WHO[n % 2], "amount": f"{n}.50", "at": "2026-01-01T10:00:00Z"})
        client.xadd("orders", {"n": "x"})
    tables = {name: toml(kind.settings(name)) for name in ("all", "large", "archive")}
    config = ETL.format(url=server.url, folder=tmp_path, **tables)
    write = JobOutput.write

    def killed(self: JobOutput, good: Any, count: int, batch: int, is_kept: bool) -> int:
        if (self.name, batch) == ("large", 1):
            raise KilledError
        return write(self, good, count, batch, is_kept)

    monkeypatch.setattr(JobOutput, "write", killed)
    with pytest.raises(Exception, match="KilledError"):
        run(spark, etl, config, monkeypatch)
    monkeypatch.setattr(JobOutput, "write", write)
    assert (len(kind.rows("all")), len(kind.rows("large"))) == (14, 0)
    told = run(spark, etl, config, monkeypatch)
    assert (told["dead"], told["entries"]) == (1, 14)
    rows = sorted(kind.rows("all"), key=lambda row: row["n"])
    assert [(row["n"], row["who"], str(row["amount"]), row["at"]) for row in rows] == [
        (n, WHO[n % 2], f"{n}.50", AT) for n in range(20)
    ]
    assert sorted(row["n"] for row in kind.rows("large")) == list(range(10, 20))
    run(spark, archive, ARCHIVE.format(url=server.url, folder=tmp_path, **tables), monkeypatch)
    kept = kind.rows("archive")
    assert sorted(dict(row["fields"])[b"n"] for row in kept) == sorted([*(b"%d" % n for n in range(20)), b"x"])
    with server.client() as client:
        assert client.xlen("orders") == 0


@pytest.mark.long
def test_a_table_alone_is_written_while_its_batches_are_read(
    spark: SparkSession, server: Server, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = (11, 13)
    with server.client() as client:
        for n in range(25):
            client.xadd("orders", {"n": n if n not in bad else "none", "who": "ann"})
    text = ALONE.format(url=server.url, folder=tmp_path, table=toml(kind.settings("alone")))
    kept, write = list[bool](), JobOutput.write

    def seen(self: JobOutput, good: Any, count: int, batch: int, is_kept: bool) -> int:
        kept.append(is_kept)
        return write(self, good, count, batch, is_kept)

    monkeypatch.setattr(JobOutput, "write", seen)
    told = run(spark, etl, text, monkeypatch)
    assert kept == [True, False, False, True, False]
    assert (told["entries"], told["dead"]) == (25, 2)
    assert sorted(row["n"] for row in kind.rows("alone")) == [n for n in range(25) if n not in bad]


N = pa.schema({"n": pa.int32()})


def pages(*numbers: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": pa.array(numbers, pa.int32())})


def written(writing: Iterator[pa.RecordBatch]) -> list[bool]:
    return [page["written"].to_pylist() == [True] for page in writing]


def test_of_two_tasks_that_write_one_batch_the_table_takes_one(kind: Kind) -> None:
    """Also where the second one had looked before the first one had written. Another query's batch is no conflict."""
    kind.create("t", N)
    write = kind.writer("t", "query:table", 0, N)
    other = kind.writer("t", "query:late", 0, N)

    def overtaken(*writing: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor() as beside:  # the package is in the midst of a write in this one
            for one in writing:
                assert beside.submit(lambda one=one: written(one)).result() == [True]
        yield from pages(1, 2)

    assert len(list(write(overtaken(write(pages(1, 2)), other(pages(3)))))) == 1
    assert written(write(pages(1, 2))) == [False]
    assert sorted(row["n"] for row in kind.rows("t")) == [1, 2, 3]
    following = kind.writer("t", "query:table", 1, N)
    assert written(following(overtaken(kind.writer("t", "query:late", 1, N)(pages(4))))) == [True]
    assert sorted(row["n"] for row in kind.rows("t")) == [1, 1, 2, 2, 3, 4]
    at_least_once = kind.writer("t", None, 0, N)
    list(at_least_once(pages(5)))
    list(at_least_once(pages(5)))
    assert sorted(row["n"] for row in kind.rows("t"))[-2:] == [5, 5]


def test_a_table_of_other_partitions_is_refused(spark: SparkSession, kind: Kind) -> None:
    settings = kind.settings("t")
    write(spark.range(3), settings)
    with pytest.raises(TableError, match=r"is partitioned by nothing, but the job writes it by id: set partition_by"):
        write(spark.range(3), {**settings, "partition_by": ["id"]})
    assert len(kind.rows("t")) == 3


def test_a_table_names_its_owner_and_others_append_to_it(spark: SparkSession, kind: Kind) -> None:
    """A table that was made before is taken; another job is refused until it takes it over, or all share it."""

    def as_query(query: str, number: int, claimant: Claimant | None = None, **more: Any) -> None:
        settings = {**kind.settings("t"), **more}
        table = TableConfig.parse(settings, "table", settings.get("options", {}))
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", query)
        try:
            rows = spark.sql(f"SELECT CAST({number} AS INT) AS n")
            table.open(spark, "table", table.fit(spark, rows.schema), claimant).write(rows, number)
        finally:
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]

    kind.create("t", N)
    written(kind.writer("t", None, 0, N)(pages(0)))
    as_query("first", 1)
    written(kind.writer("t", None, 0, N)(pages(2)))  # another program appends
    as_query("first", 3)
    with pytest.raises(
        TableError, match=r"belongs to output 'table' .*\(query first\), .*\(query second\).*--take-over"
    ):
        as_query("second", 4)
    as_query("second", 4, Claimant(take_over=True))
    as_query("second", 5)
    with pytest.raises(TableError, match=r"\(query second\), and this is .*\(query first\)"):
        as_query("first", 6)
    as_query("first", 6, shared=True)
    assert sorted(row["n"] for row in kind.rows("t")) == [*range(7)]


def test_the_columns_of_a_table_change(spark: SparkSession, kind: Kind) -> None:
    """New and missing columns, and types, by the rules of tests/connector/spark/jobs/test_changed_columns.py."""
    settings = kind.settings("t")
    write(spark.sql("SELECT 1L AS id, CAST(2.5 AS DECIMAL(10, 2)) AS amount, 'n' AS region"), settings)
    changed = spark.sql("SELECT 'x' AS note, 2 AS id, CAST(3.5 AS DECIMAL(8, 1)) AS amount")
    with pytest.raises(
        TableError, match=r"lacks the rows' column `note` STRING: .*ADD COLUMNS \(`note` STRING\).*schema = \"merge\""
    ):
        write(changed, settings)
    write(changed, {**settings, "schema": "merge"})
    write(spark.sql("SELECT 3L AS id"), settings)
    shown = [{**row, "amount": row["amount"] and str(row["amount"])} for row in kind.rows("t")]
    assert sorted(shown, key=lambda row: row["id"]) == [
        {"id": 1, "amount": "2.50", "region": "n", "note": None},
        {"id": 2, "amount": "3.50", "region": None, "note": "x"},
        {"id": 3, "amount": None, "region": None, "note": None},
    ]


VALUES = """
SELECT CAST(-128 AS TINYINT) AS b, CAST(32767 AS SMALLINT) AS s, CAST(0.1 AS FLOAT) AS f, double('NaN') AS d,
    CAST('12345678901234567890.0123456789' AS DECIMAL(38, 10)) AS m, X'00FF' AS y, DATE'0001-01-01' AS dt,
    TIMESTAMP'1969-12-31 23:59:59.999999Z' AS ts, TIMESTAMP_NTZ'2026-01-01 00:00:00.000001' AS n, array(1, null) AS a,
    map(X'FF', X'00') AS mp, struct(array('x') AS z) AS st, true AS bo, CAST(null AS INT) AS none
"""


def test_no_value_changes_on_its_way(spark: SparkSession, kind: Kind) -> None:
    rows = spark.sql(VALUES)
    for _ in range(2):  # into a new table, and into one that is there
        write(rows, {**kind.settings("t"), "partition_by": ["dt"]})
    epoch = datetime.datetime(1970, 1, 1)
    for row in kind.rows("t"):
        assert row.pop("d") != row.pop("d", 0.0)
        assert struct.pack("f", row.pop("f")) == struct.pack("f", 0.1)
        assert row == {
            "b": -128, "s": 32767, "m": Decimal("12345678901234567890.0123456789"), "y": b"\x00\xff",
            "dt": datetime.date(1, 1, 1), "a": [1, None], "mp": [(b"\xff", b"\x00")], "st": {"z": ["x"]}, "bo": True,
            "ts": epoch.replace(tzinfo=datetime.UTC) - datetime.timedelta(microseconds=1),
            "n": datetime.datetime(2026, 1, 1, microsecond=1), "none": None,
        }  # fmt: skip


def write(rows: DataFrame, settings: dict[str, Any], number: int = 0, once: bool = False) -> None:
    """Write the rows as a batch that no earlier call has written, or `once`."""
    options = settings.get("options", {})
    table = TableConfig.parse({**settings, "once": once}, "table", options)
    table.check_format(rows.sparkSession)
    table.open(rows.sparkSession, "table", table.fit(rows.sparkSession, rows.schema)).write(rows, number)


# -- pyiceberg ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_found_when_its_snapshot_has_expired(spark: SparkSession, tmp_path: Path) -> None:
    """And when others have committed since. Snapshots name the batch as long as they are there."""
    kind = Pyiceberg(tmp_path)
    for number in range(3):
        write(spark.range(number, number + 1), kind.settings("t"), number, once=True)
    write(spark.range(0).where("false"), kind.settings("t"), 3, once=True)
    table = kind.table("t")
    names = [
        (snapshot.summary["spark-streams.query"], snapshot.summary["spark-streams.batch"])
        for snapshot in table.snapshots()
    ]
    assert names == [("query:table", str(number)) for number in range(3)]
    table.append(pa.table({"id": [7]}))
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots()][:-1]).commit()
    assert len(kind.table("t").snapshots()) == 1
    for number in range(3):
        write(spark.range(number, number + 1), kind.settings("t"), number, once=True)
    assert sorted(row["id"] for row in kind.rows("t")) == [0, 1, 2, 7]


def test_a_commit_of_which_no_answer_came_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    kind = Pyiceberg(tmp_path)
    kind.create("t", N)
    commit, lost = SqlCatalog.commit_table, [True, False]

    def committing(self: SqlCatalog, *words: Any) -> Any:
        is_done = lost.pop(0)
        told = commit(self, *words) if is_done else None
        raise ConnectionError(told and "the answer is lost")

    monkeypatch.setattr(SqlCatalog, "commit_table", committing)
    assert written(kind.writer("t", "query:table", 0, N)(pages(1))) == [True]
    with pytest.raises(ConnectionError):
        written(kind.writer("t", "query:table", 1, N)(pages(2)))
    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    assert written(kind.writer("t", "query:table", 1, N)(pages(2))) == [True]
    assert sorted(row["n"] for row in kind.rows("t")) == [1, 2]


def test_attempts_to_commit_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    kind, attempts = Pyiceberg(tmp_path), []
    kind.create("t", N)
    kind.table("t").transaction().set_properties({"commit.retry.num-retries": "2"}).commit_transaction()

    def committing(*words: Any) -> None:
        attempts.append(words)
        raise CommitFailedException("branch main has changed")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", committing)
        with pytest.raises(TableError, match=r"before each attempt .*; start the job again, or raise .*num-retries"):
            written(kind.writer("t", "query:table", 0, N)(pages(1)))
    assert len(attempts) == 3
    assert written(kind.writer("t", "query:table", 0, N)(pages(1))) == [True]
    assert [row["n"] for row in kind.rows("t")] == [1]


def test_a_large_batch_is_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts that fit into memory; also where it is repeated."""
    monkeypatch.setattr(pyiceberg_table, "_MOST_BYTES", 8)
    kind = Pyiceberg(tmp_path)
    kind.create("t", N)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from (*pages(1, 2), *pages(3, 4), *pages(5))
        with ThreadPoolExecutor() as beside:
            assert beside.submit(written, kind.writer("t", "other", 0, N)(pages(6))).result() == [True]

    before = kind.table("t").metadata_location
    assert written(kind.writer("t", "query:table", 0, N)(overtaken())) == [True]
    table = kind.table("t")
    assert [snapshot.summary["added-records"] for snapshot in table.snapshots()] == ["1", "2", "2", "1"]
    assert table.metadata.metadata_log[0].metadata_file == before
    assert len(table.metadata.metadata_log) == 2
    assert sorted(row["n"] for row in kind.rows("t")) == [1, 2, 3, 4, 5, 6]


def test_a_table_may_be_partitioned_by_the_day_of_a_time(spark: SparkSession, tmp_path: Path) -> None:
    from pyiceberg.transforms import DayTransform

    kind = Pyiceberg(tmp_path)
    kind.create("t", pa.schema({"At": pa.timestamp("us", "UTC")}))
    with kind.table("t").update_spec() as change:
        change.add_field("At", DayTransform(), "day")
    rows = spark.sql("SELECT explode(array(TIMESTAMP'2026-01-01 00:00:00Z', TIMESTAMP'2026-01-02 23:00:00Z')) AS at")
    write(rows, {**kind.settings("t"), "partition_by": ["at"]})
    assert sorted(row["partition"]["day"].day for row in kind.table("t").inspect.partitions().to_pylist()) == [1, 2]


def test_a_column_that_may_not_be_null_gets_values(spark: SparkSession, tmp_path: Path) -> None:
    kind = Pyiceberg(tmp_path)
    kind.create("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    write(spark.sql("SELECT CAST(id AS INT) AS id FROM range(2)"), kind.settings("t"))
    with pytest.raises(PythonException, match="null"):  # the job makes it a dead letter before
        write(spark.sql("SELECT CAST(null AS INT) AS id"), kind.settings("t"))
    assert sorted(row["id"] for row in kind.rows("t")) == [0, 1]


def test_a_message_about_a_catalog_has_no_password(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"format": "pyiceberg", "catalog": "lake", "name": "shop.t"}
    for options in (
        {"password": "s3cr3t-1", "warehouse": "x"},
        {"type": "sql", "uri": "postgresql+psycopg2://ann:s3cr3t-2@127.0.0.1:1/x"},
        {"type": "rest", "uri": "http://ann:s3cr3t-3@127.0.0.1:1/", "token": "s3cr3t-4", "credential": "s3cr3t-5"},
    ):
        table = TableConfig.parse(settings, "table", options)
        assert "s3cr3t" not in table.plan
        with pytest.raises(TableError, match="shop.t cannot be loaded by catalog 'lake': ") as refused:
            table.fit(spark, spark.range(1).schema)
        assert "s3cr3t" not in "".join(traceback.format_exception(refused.value))


def test_a_catalog_of_pyiceberg_s_own_configuration(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read by the driver: a task gets what it needs from there."""
    kind = Pyiceberg(tmp_path)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    options = "".join(f"    {key}: {value}\n" for key, value in kind.options.items())
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  lake:\n{options}")
    write(spark.range(2), {"format": "pyiceberg", "catalog": "lake", "name": "shop.t"})
    assert sorted(row["id"] for row in kind.rows("t")) == [0, 1]
    (tmp_path / ".pyiceberg.yaml").write_text('{"token": "s3cr3t"}')
    with pytest.raises(TableError, match=r"\(.pyiceberg.yaml\) cannot be read: [A-Za-z]+; correct the file"):
        kind.rows("t")


# -- small files -------------------------------------------------------------------------------------------------------

BATCH = pa.schema({"batch": pa.int32(), "n": pa.int32()})


def batch_page(number: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([number] * 5, pa.int32()), pa.array(range(5), pa.int32())], BATCH)


@pytest.fixture
def compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeltalakeTable]:
    """A table, written without Spark: rows are pages."""
    monkeypatch.setattr(deltalake_table, "write_in_one_task", lambda page, write: list(write(iter([page]))))
    monkeypatch.setattr(deltalake_table, "application_of", lambda *_: "query:table")
    monkeypatch.setattr(deltalake_table, "arrow_schema", lambda schema: schema)
    Deltalake(tmp_path).create("t", BATCH)

    def opened(every: int, keep: int | None = None) -> DeltalakeTable:
        none: Any = None
        config = TableConfig("table", "deltalake", str(tmp_path / "t"), compaction=Compaction(every, keep))
        return DeltalakeTable(none, config, "table")

    return opened


@pytest.mark.long
def test_a_thousand_batches_leave_few_files(compacted: Callable[..., DeltalakeTable], tmp_path: Path) -> None:
    """Read meanwhile: each read sees whole batches, none twice, and none that an earlier read saw is gone."""
    from deltalake import DeltaTable

    kind, table, reads = Deltalake(tmp_path), compacted(100), [0]
    is_over = threading.Event()

    def reading() -> None:
        while not is_over.is_set():
            seen = sorted((row["batch"], row["n"]) for row in kind.rows("t"))
            assert seen == [(number, n) for number in range(len(seen) // 5) for n in range(5)]
            assert len(seen) >= reads[-1]
            reads.append(len(seen))

    with ThreadPoolExecutor() as beside:
        reader = beside.submit(reading)
        try:
            for number in range(1000):
                table.write(batch_page(number), number)  # type: ignore[arg-type]
                table.write(batch_page(number), number)  # type: ignore[arg-type]  # as a replay does
        finally:
            is_over.set()
        reader.result()
    files = DeltaTable(str(tmp_path / "t")).file_uris()
    print(f"{len(files)} data files after 1,000 batches, {len(set(reads))} states seen in {len(reads)} reads")
    assert len(files) <= 20
    assert len(set(reads)) > 20
    assert len(kind.rows("t")) == 5000


def test_replaced_files_are_deleted_after_their_time(compacted: Callable[..., DeltalakeTable], tmp_path: Path) -> None:
    """And nothing else: no file that the log does not name, a checkpoint, another Delta table and a stranger's file."""
    from deltalake import DeltaTable

    table, folder = compacted(2, keep=2), tmp_path / "t"
    for number in range(2):
        table.write(batch_page(number), number)  # type: ignore[arg-type]
    replaced = {file.name for file in folder.glob("*.parquet")} - {
        Path(uri).name for uri in DeltaTable(str(folder)).file_uris()
    }
    assert len(replaced) == 2
    Deltalake(folder).create("inner", BATCH)
    strange = [folder / "of-a-killed-run.parquet", folder / "notes.txt", folder / "checkpoint" / "offsets" / "0"]
    for file in strange:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    strange += [*(folder / "inner").rglob("*.json")]
    hours = 3_600_000
    for file in (folder / "_delta_log").glob("*.json"):
        aged = re.sub(r'(?<="deletionTimestamp":)\d+', lambda found: str(int(found[0]) - 3 * hours), file.read_text())
        file.write_text(aged)
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - 3 * 3600,) * 2)
    for number in range(2, 4):
        table.write(batch_page(number), number)  # type: ignore[arg-type]
    names = {file.name for file in folder.glob("*.parquet")}
    assert not names & replaced
    assert len(strange) == 4
    assert all(file.exists() for file in strange)
    assert len(names) == 1 + 1 + 3, "the killed run's, the merged one, and three that it replaced now"
    assert len(Deltalake(tmp_path).rows("t")) == 20


def test_two_compactions_at_once_double_the_rows(tmp_path: Path) -> None:
    """Why `compact_every` is refused with `shared`. If this fails, deltalake has mended it: allow both again."""
    from deltalake import DeltaTable, write_deltalake

    for _ in range(2):
        write_deltalake(tmp_path, batch_page(0), mode="append")
    rows = DeltaTable(tmp_path).to_pyarrow_table().num_rows
    tables = [DeltaTable(tmp_path), DeltaTable(tmp_path)]
    for table in tables:
        table.optimize.compact()
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 2 * rows


@pytest.mark.parametrize("then_appends", [False, True])
def test_a_compaction_beside_a_foreign_one_is_undone_or_named(
    compacted: Callable[..., DeltalakeTable],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    then_appends: bool,
) -> None:
    """It begins between the job's read of the table and its commit."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.table import TableOptimizer

    compact = TableOptimizer.compact
    folder = str(tmp_path / "t")

    def beside(self: TableOptimizer, **given: Any) -> dict[str, Any]:
        compact(DeltaTable(folder).optimize)
        done: dict[str, Any] = compact(self, **given)
        if then_appends:
            write_deltalake(folder, pa.Table.from_batches([batch_page(9)]), mode="append")
        return done

    table = compacted(2)
    monkeypatch.setattr(TableOptimizer, "compact", beside)
    for number in range(2):
        table.write(batch_page(number), number)  # type: ignore[arg-type]
    rows = len(Deltalake(tmp_path).rows("t"))
    if then_appends:
        assert rows == 25
        assert "RSTREAM_TABLE" in caplog.text
        assert "rows of the table are there twice since its version 4" in caplog.text
    else:
        assert (rows, len(DeltaTable(folder).file_uris())) == (10, 1)
        assert "another program has replaced files meanwhile, so the merge was undone" in caplog.text


def test_a_foreign_compaction_that_commits_behind_the_job_s_is_named(
    compacted: Callable[..., DeltalakeTable], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It had read the table before. The job's next compaction sees it in the log."""
    from deltalake import DeltaTable

    table, folder = compacted(2), str(tmp_path / "t")
    table.write(batch_page(0), 0)  # type: ignore[arg-type]
    table.write(batch_page(1), 2)  # type: ignore[arg-type]
    foreign = DeltaTable(folder)
    table.write(batch_page(2), 3)  # type: ignore[arg-type]
    foreign.optimize.compact()
    for number in (4, 5):
        table.write(batch_page(number), number)  # type: ignore[arg-type]
    assert len(Deltalake(tmp_path).rows("t")) == 35
    assert "rows may be there twice since version 5: two compactions at once" in caplog.text


def test_a_compaction_beside_an_append_is_kept(
    compacted: Callable[..., DeltalakeTable], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from deltalake import DeltaTable, write_deltalake
    from deltalake.table import TableOptimizer

    compact, folder = TableOptimizer.compact, str(tmp_path / "t")

    def beside(self: TableOptimizer, **given: Any) -> None:
        write_deltalake(folder, pa.Table.from_batches([batch_page(9)]), mode="append")
        compact(self, **given)

    table = compacted(2)
    monkeypatch.setattr(TableOptimizer, "compact", beside)
    for number in range(2):
        table.write(batch_page(number), number)  # type: ignore[arg-type]
    assert len(Deltalake(tmp_path).rows("t")) == 15
    assert len(DeltaTable(folder).file_uris()) == 2


def test_a_compaction_that_another_writer_prevents_ends_no_query(
    compacted: Callable[..., DeltalakeTable],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError
    from deltalake.table import TableOptimizer

    def conflict(*_: Any) -> None:
        raise CommitFailedError("a file was deleted")

    table = compacted(2)
    compact = TableOptimizer.compact
    monkeypatch.setattr(TableOptimizer, "compact", conflict)
    for number in range(2):
        table.write(batch_page(number), number)  # type: ignore[arg-type]
    assert (
        "failed; no row is lost, and the job tries again after 2 batches: CommitFailedError: a file was deleted"
        in caplog.text
    )
    monkeypatch.setattr(TableOptimizer, "compact", compact)
    for number in range(2, 4):
        table.write(batch_page(number), number)  # type: ignore[arg-type]
    assert len(DeltaTable(str(tmp_path / "t")).file_uris()) == 1


@pytest.mark.parametrize(
    "error", [OSError("no route to the store"), ValueError("x"), type("PanicException", (BaseException,), {})("y")]
)
def test_no_error_of_a_compaction_ends_a_job(
    compacted: Callable[..., DeltalakeTable],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: BaseException,
) -> None:
    """Neither of the merge nor of the deletion of replaced files. The end of the process is none of them."""
    from deltalake import DeltaTable
    from deltalake.table import TableOptimizer

    def failing(raised: BaseException) -> Callable[..., None]:
        def fail(*_: Any, **__: Any) -> None:
            raise raised

        return fail

    table = compacted(1, keep=1)
    monkeypatch.setattr(TableOptimizer, "compact", failing(error))
    monkeypatch.setattr(DeltaTable, "vacuum", failing(error))
    table.write(batch_page(0), 0)  # type: ignore[arg-type]
    failed = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.partition("; no row is lost, and ")[2].partition(":")[0] for message in failed] == [
        "the job tries again after 1 batches",
        "replaced files stay until the next one",
    ]
    assert all(str(error) in message for message in failed)
    assert len(Deltalake(tmp_path).rows("t")) == 5
    monkeypatch.setattr(TableOptimizer, "compact", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        table.write(batch_page(1), 1)  # type: ignore[arg-type]


def test_snapshots_of_iceberg_expire_after_their_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job deletes no data file, and no error of this ends it."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    kind = Pyiceberg(tmp_path)
    monkeypatch.setattr(pyiceberg_table, "_EXPIRE_EVERY", 3)
    settings = {**kind.settings("t"), "keep": "1h"}
    for number in range(3):
        write(spark.range(number, number + 1), settings, number, once=True)
    assert len(kind.table("t").snapshots()) == 3, "all are younger than an hour"
    older_than = ExpireSnapshots.older_than
    aged = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    monkeypatch.setattr(ExpireSnapshots, "older_than", lambda self, _moment: older_than(self, aged))
    write(spark.range(3, 4), settings, 5, once=True)
    assert len(kind.table("t").snapshots()) == 1
    assert sorted(row["id"] for row in kind.rows("t")) == [0, 1, 2, 3]

    def fail(*_: Any) -> None:
        raise OSError("no route to the store")

    monkeypatch.setattr(ExpireSnapshots, "older_than", fail)
    write(spark.range(4, 5), settings, 8, once=True)
    assert "expiring snapshots of Iceberg table shop.t failed; no row is lost, and the job tries again" in caplog.text
