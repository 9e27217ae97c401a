"""One output has one owner: a second run, another job, and what lies beside a table's files."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType
from rich.console import Console

from spark_streams import register
from spark_streams.connector.errors import ConfigError, TableError
from spark_streams.jobs.command import program
from spark_streams.jobs.job import CheckedError, Job
from spark_streams.jobs.output.ownership import write_text
from spark_streams.jobs.output.spark_tables import BatchFolders
from spark_streams.jobs.output.table_config import TableConfig
from spark_streams.jobs.parts.loading import Load
from spark_streams.jobs.parts.outputs import JobOutput
from spark_streams.jobs.parts.source_and_sink import Sink
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.spark

ENTRIES = 40
CONFIGS = {
    "etl": """
source = {streams = "orders", group = "etl", startingOffsets = "earliest", entriesPerPartition = 20}
columns = {n = "INT"}
dead_letters.stream = "orders:dead"
table.path = "FOLDER/table"
""",
    "archive": """
source = {streams = "orders", group = "archive", entriesPerPartition = 20}
table.path = "FOLDER/table"
trim.approximate = false
""",
    "aggregate": """
source = {streams = "orders", group = "aggregate", startingOffsets = "earliest", entriesPerPartition = 20}
columns = {n = "INT"}
aggregate = {keys = ["n"], values = {rows = "count(*)"}}
sink.stream = "sums"
""",
    "load": """
input = {path = "FOLDER/files", format = "json", schema = "n INT"}
sink.stream = "loaded"
""",
}


def config(job: str, server: Server, folder: Path, more: str = "", checkpoint: str = "checkpoint") -> str:
    text = f'url = "{server.url}"\njob.checkpoint = "{folder}/{checkpoint}"\n{CONFIGS[job]}{more}'
    return text.replace("FOLDER", str(folder))


def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, text: str, **more: Any) -> dict[str, Any]:
    register(spark)
    monkeypatch.setattr(Job, "session", lambda _job: spark)
    job = Job(name, tomllib.loads(text), Console(quiet=True), **more)
    program(name).body(job)
    return job.summary


def fill(server: Server, first: int = 0) -> None:
    with server.client() as client:
        for n in range(first, first + ENTRIES):
            client.xadd("orders", {"n": n})


# -- a second run ------------------------------------------------------------------------------------------------------


def meet(folder: str, moment: str) -> None:
    """Ask for a second run, and wait for its end. Also called by tasks."""
    asked = Path(folder, f"{moment}.asked")
    if asked.exists():
        return
    asked.touch()
    until(Path(folder, f"{moment}.answered").exists, f"no second run at moment {moment}")


@pytest.fixture
def second_runs(tmp_path: Path) -> Iterator[Callable[[str, str], dict[str, str]]]:
    """Runs a job again, in another process, at each moment that `meet` names. The errors by moment."""
    asking = subprocess.Popen(
        [sys.executable, "-m", "tests.connector.spark.jobs.second_run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asking.stdin is not None
    assert asking.stdout is not None
    answers: dict[str, str] = {}
    is_over = threading.Event()

    def answer(job: str, text: str) -> None:
        while not is_over.is_set():
            for asked in tmp_path.glob("*.asked"):
                if asked.stem not in answers:
                    asking.stdin.write(json.dumps([job, text]) + "\n")  # type: ignore[union-attr]
                    asking.stdin.flush()  # type: ignore[union-attr]
                    lines = iter(asking.stdout.readline, "")  # type: ignore[union-attr]
                    line = next(line for line in lines if line.startswith("answer "))
                    answers[asked.stem] = json.loads(line.removeprefix("answer "))
                    asked.with_suffix(".answered").touch()
            time.sleep(0.05)

    threads: list[threading.Thread] = []

    def begin(job: str, text: str) -> dict[str, str]:
        threads.append(threading.Thread(target=answer, args=(job, text)))
        threads[0].start()
        return answers

    yield begin
    is_over.set()
    asking.stdin.close()
    asking.kill()
    asking.wait()
    for thread in threads:
        thread.join()


def meeting_in_a_task(rows: DataFrame, folder: Path, table: Path | None) -> DataFrame:
    """The rows, of which task 1 meets the second run when the files of task 0 are complete."""

    def is_row() -> bool:
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and not (folder / "task.asked").exists():
            if table is not None:
                staged = f"{table.name}/.spark-staging-*/**/task_*"
                until(lambda: any(table.parent.glob(staged)), "task 0 has not ended")
            meet(str(folder), "task")
        return True

    return rows.where(F.udf(is_row, BooleanType(), useArrow=False).asNondeterministic()())


@pytest.mark.parametrize(
    "job", [job if job == "archive" else pytest.param(job, marks=pytest.mark.long) for job in CONFIGS]
)
def test_a_second_run_at_each_moment_of_a_batch_changes_nothing(
    spark: SparkSession,
    server: Server,
    job: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    second_runs: Callable[[str, str], dict[str, str]],
) -> None:
    """It is refused, and each entry has one row: before the batch, with one of its tasks ended, and after its write."""
    table = tmp_path / "table"
    fill(server)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(ENTRIES)))

    def patched(owner: type, name: str, is_table: bool) -> None:
        inner = getattr(owner, name)

        def write(self: Any, rows: DataFrame, *more: Any) -> None:
            meet(str(tmp_path), "before")
            inner(self, meeting_in_a_task(rows, tmp_path, table if is_table else None), *more)
            meet(str(tmp_path), "written")

        monkeypatch.setattr(owner, name, write)

    if job == "load":
        run_load = Load.run
        # One file is one task.

        def met() -> bool:
            meet(str(tmp_path), "task")
            return True

        hooked = F.udf(met, BooleanType(), useArrow=False).asNondeterministic()
        monkeypatch.setattr(Load, "run", lambda self, rows: run_load(self, rows.where(hooked())))
    else:
        patched(Sink if job == "aggregate" else BatchFolders, "write", job != "aggregate")
    answers = second_runs(job, config(job, server, tmp_path))
    run(spark, monkeypatch, job, config(job, server, tmp_path))
    assert set(answers) == ({"task"} if job == "load" else {"before", "task", "written"})
    condition = "RSTREAM_TAKEN" if job == "load" else "RSTREAM_CONSUMER_TAKEN"
    assert all(condition in error for error in answers.values()), answers
    with server.client(decode_responses=True) as client:
        if job == "etl":
            assert sorted(row.n for row in spark.read.parquet(str(table)).collect()) == [*range(ENTRIES)]
        elif job == "archive":
            rows = spark.read.parquet(str(table)).collect()
            assert sorted(int(row.fields["n"]) for row in rows) == [*range(ENTRIES)]
            assert client.xlen("orders") == 0
        else:
            entries = [fields for _, fields in client.xrange("sums" if job == "aggregate" else "loaded")]
            assert sorted(int(fields["n"]) for fields in entries) == [*range(ENTRIES)]
            assert {fields.get("rows", "1") for fields in entries} == {"1"}


# -- another owner -----------------------------------------------------------------------------------------------------


def check(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, text: str, **more: Any) -> None:
    """`--check` finds no error."""
    with pytest.raises(CheckedError):
        run(spark, monkeypatch, name, text, check=True, **more)


@pytest.mark.parametrize("job", CONFIGS)
def test_check_leaves_nothing_on_the_server_and_no_file(
    spark: SparkSession, server: Server, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a stream that does not exist."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.json").write_text('{"n": 1}\n')
    before = sorted(tmp_path.rglob("*"))
    check(spark, monkeypatch, job, config(job, server, tmp_path))
    with server.client() as client:
        assert client.keys("*") == []
    assert sorted(tmp_path.rglob("*")) == before


def refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str) -> None:
    """`--check` and the start refuse the job by the same words."""
    for checked in (True, False):
        with pytest.raises((TableError, ConfigError), match=message):
            run(spark, monkeypatch, name, text, check=checked)


def ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(str(path)).collect())


@pytest.mark.parametrize("job", ["etl", "archive"])
def test_a_table_of_another_query_is_refused_until_it_is_handed_over(
    spark: SparkSession, server: Server, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server)
    run(spark, monkeypatch, job, config(job, server, tmp_path))
    run(spark, monkeypatch, job, config(job, server, tmp_path))
    other = config(job, server, tmp_path, checkpoint="other").replace(f'group = "{job}"', 'group = "late"')
    message = rf"table .*/table belongs to output 'table' of job {job}, group '{job}' \(query .*\), and this is output"
    refused(spark, monkeypatch, job, other, f"{message}.*group 'late'.*another table .*table.path.*--take-over")
    check(spark, monkeypatch, job, other, take_over=True)
    refused(spark, monkeypatch, job, other, message)
    fill(server, ENTRIES)
    run(spark, monkeypatch, job, other, take_over=True)
    run(spark, monkeypatch, job, other)
    refused(spark, monkeypatch, job, config(job, server, tmp_path), "group 'late'.*, and this is .*--take-over")


def test_partition_by_that_changed_behind_an_uncommitted_batch_is_refused(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is written a second time, and the folders have one depth."""
    fill(server)
    write = JobOutput.write

    def killed(self: Any, *words: Any) -> None:
        write(self, *words)
        raise RuntimeError("killed")

    monkeypatch.setattr(JobOutput, "write", killed)
    with pytest.raises(Exception, match="killed"):
        run(spark, monkeypatch, "etl", config("etl", server, tmp_path))
    monkeypatch.setattr(JobOutput, "write", write)
    assert ids(spark, tmp_path / "table") == [*range(ENTRIES)]
    changed = config("etl", server, tmp_path, 'table.partition_by = ["n"]')
    refused(spark, monkeypatch, "etl", changed, "is partitioned by batch, but the job writes it by n, batch")
    record = tmp_path / "table" / "_schema.json"
    columns = {key: value for key, value in json.loads(record.read_text()).items() if key in ("type", "fields")}
    record.write_text(json.dumps(columns))  # as of an earlier version
    (tmp_path / "table" / "._schema.json.crc").unlink(missing_ok=True)
    refused(spark, monkeypatch, "etl", changed, "is partitioned by batch, but the job writes it by n, batch")
    run(spark, monkeypatch, "etl", config("etl", server, tmp_path))
    assert ids(spark, tmp_path / "table") == [*range(ENTRIES)]


def test_a_folder_of_files_without_partitions_is_refused(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's readers pass over such files as soon as there is a folder batch=…."""
    fill(server)
    spark.range(3).toDF("n").write.parquet(str(tmp_path / "table"))
    message = "table .* is partitioned by nothing, but the job writes it by batch"
    refused(spark, monkeypatch, "etl", config("etl", server, tmp_path), message)


def test_a_folder_of_another_format_is_refused(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server)
    run(spark, monkeypatch, "etl", config("etl", server, tmp_path))
    changed = config("etl", server, tmp_path, 'table.format = "orc"')
    refused(spark, monkeypatch, "etl", changed, "has files of format parquet, but the job writes orc")


@pytest.mark.parametrize(("first", "second"), [("table", "table/inner"), ("table/inner", "table")])
def test_an_output_within_an_output_is_refused(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    fill(server)
    text = config("etl", server, tmp_path)
    run(spark, monkeypatch, "etl", text.replace("/table", f"/{first}"))
    other = config("archive", server, tmp_path, checkpoint="other").replace("/table", f"/{second}")
    refused(spark, monkeypatch, "archive", other, "one output must not be within another")
    one_job = (
        text.replace("/table", f"/{first}")
        + f"""
[[output]]
name = "inner"
table.path = "{tmp_path}/{second}"
"""
    )
    refused(spark, monkeypatch, "etl", one_job, "share a folder: give each output a folder of its own")


@pytest.mark.parametrize("table", ["{f}", "{f}/checkpoint", "{f}/checkpoint/inner", "file:{f}", "{f}/x/.."])
def test_a_checkpoint_and_a_table_share_no_folder(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    fill(server)
    for job in ("etl", "archive"):
        text = config(job, server, tmp_path).replace(f"{tmp_path}/table", table.format(f=tmp_path))
        refused(spark, monkeypatch, job, text, r"job.checkpoint '.*' lies in table.path|lies in job.checkpoint '")
    assert not [*tmp_path.iterdir()]


def test_files_of_the_configuration_and_strange_checkpoints_lie_in_no_table(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server)
    table = tmp_path / "table"
    table.mkdir()
    for name in ("etl.toml", "orders.json"):
        (table / name).write_text('{"type": "struct", "fields": []}')
    text = config("etl", server, tmp_path)
    for checked in (True, False):
        with pytest.raises(ConfigError, match=r"--config '.*etl.toml' lies in table.path"):
            run(spark, monkeypatch, "etl", text, check=checked, files={"--config": str(table / "etl.toml")})
    schema = f'schema.json = "{table}/orders.json"\n{text}'
    refused(spark, monkeypatch, "etl", schema, r"schema.json '.*' lies in table.path")
    for below in ("a/checkpoint/offsets", "a/checkpoint/commits"):
        (table / below).mkdir(parents=True)
    refused(spark, monkeypatch, "etl", text, r"the checkpoint of a query, '.*/a/checkpoint', lies in table.path")
    (table / "a" / "checkpoint").rename(tmp_path / "strange")
    run(spark, monkeypatch, "etl", text)
    assert ids(spark, table) == [*range(ENTRIES)]
    assert (table / "orders.json").exists()


def test_a_table_that_was_moved_or_copied_is_continued_by_its_query(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server)
    text = config("etl", server, tmp_path)
    run(spark, monkeypatch, "etl", text)
    (tmp_path / "table").rename(tmp_path / "moved")
    fill(server, ENTRIES)
    run(spark, monkeypatch, "etl", text.replace("/table", "/moved"))
    assert ids(spark, tmp_path / "moved") == [*range(2 * ENTRIES)]


def test_a_table_of_the_catalog_names_its_owner(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server)
    name = f"t{abs(hash(tmp_path)):x}"
    text = config("etl", server, tmp_path).replace(f'table.path = "{tmp_path}/table"', f'table.name = "{name}"')
    try:
        run(spark, monkeypatch, "etl", text)
        run(spark, monkeypatch, "etl", text)
        other = text.replace(f'"{tmp_path}/checkpoint"', f'"{tmp_path}/other"')
        refused(spark, monkeypatch, "etl", other, f"table {name} belongs to output 'table' of job etl, group 'etl'")
        assert spark.table(name).count() == ENTRIES
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize("other", ['name = "Default.{name}"', 'path = "{folder}"', 'path = "{folder}/inner"'])
def test_a_table_of_the_catalog_and_another_output_share_no_folder(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Batches of both outputs have one name: the second output would replace the rows of the first one."""
    fill(server)
    name = f"t{abs(hash(tmp_path)):x}"
    place = other.format(name=name, folder=f"{spark.catalog.getDatabase('default').locationUri}/{name}")
    text = config("etl", server, tmp_path).replace(f'table.path = "{tmp_path}/table"', f'table.name = "{name}"')
    both = f'{text}\n[[output]]\nname = "few"\nwhere = "n < 3"\ntable.{place}\n'
    try:
        refused(spark, monkeypatch, "etl", both, "share a folder: give each output a folder of its own")
        run(spark, monkeypatch, "etl", text)
        refused(spark, monkeypatch, "etl", both, "share a folder: give each output a folder of its own")
        assert spark.table(name).count() == ENTRIES
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize("job", ["aggregate", "load"])
def test_a_checkpoint_in_the_table_of_another_job_is_refused(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    """Readers of the table would fail, and its own job would not start again."""
    fill(server)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.json").write_text('{"n": 1}\n')
    run(spark, monkeypatch, "etl", config("etl", server, tmp_path))
    other = config(job, server, tmp_path, checkpoint="table/a/checkpoint")
    refused(spark, monkeypatch, job, other, "job.checkpoint '.*' lies in another table, '.*/table'")
    assert not (tmp_path / "table" / "a").exists()


def as_query(spark: SparkSession, query: str, table: TableConfig, rows: DataFrame) -> Callable[[int], None]:
    """A job that has found no owner, and writes batches as this query."""
    writer = table.open(spark, "table", table.fit(spark, rows.schema))

    def write(number: int) -> None:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", query)
        try:
            writer.write(rows, number)
        finally:
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]

    return write


def test_of_two_queries_that_start_together_one_owns_the_folder(spark: SparkSession, tmp_path: Path) -> None:
    table = TableConfig("table", path=str(tmp_path / "t"))
    rows = spark.range(3).toDF("n")
    first, second = (as_query(spark, query, table, rows) for query in ("aaaaaaaa", "bbbbbbbb"))
    first(0)
    with pytest.raises(TableError, match=r"query aaaaaaaa\), and this is .*query bbbbbbbb\)"):
        second(0)
    first(1)
    assert ids(spark, tmp_path / "t") == [0, 0, 1, 1, 2, 2]
    assert not write_text(spark, str(tmp_path / "t"), "_schema.json", "{}", replace=False)
