"""Micro-batches of jobs as tables: a batch that is run again leaves its rows once, whatever the format."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from spark_streams.connector.errors import ConfigError, TableError
from spark_streams.jobs.output.owned_table import OutputWriter
from spark_streams.jobs.output.table_config import TableConfig

pytestmark = pytest.mark.spark

KEY = "it's / a=b % \\ "


def rows_of(spark: SparkSession) -> DataFrame:
    """With keys that a path, SQL and a catalog must not stumble over."""
    key = F.when(F.expr("id % 3 < 2"), F.concat(F.lit(KEY), F.expr("id % 3")))
    return spark.range(9).select("id", key.alias("key"))


def opened(table: TableConfig, rows: DataFrame, output: str = "table") -> OutputWriter:
    return table.open(rows.sparkSession, output, table.fit(rows.sparkSession, rows.schema))


def run_again(rows: DataFrame, first: OutputWriter, again: OutputWriter) -> None:
    """Batch 1 wrote three keys and was killed; run again it is smaller, and what it gave up comes in batch 2."""
    first.write(rows.where("id < 3"), 0)
    first.write(rows.where("id >= 3"), 1)
    again.write(rows.where("id = 3"), 1)
    again.write(rows.where("id > 3"), 2)


def staged(path: Path, name: str, batch: str) -> None:
    """What a task of a write that replaces partitions has left."""
    folder = path / f".spark-staging-{name}" / "_temporary" / "0" / "key=a" / batch
    folder.mkdir(parents=True)
    if batch:
        (folder / "part-0.parquet").write_bytes(b"")


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_run_that_cannot_write_its_batch_removes_nothing_of_a_run_that_has_written_it(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """A run that stood still goes on when its successor has written its batch, and has trimmed the entries."""
    gone = rows_of(spark).where(F.expr("raise_error('entries were trimmed') IS NULL"))
    for table in (TableConfig("table", path=str(tmp_path / "out")), TableConfig("table", name=name)):
        stood_still = opened(table, rows_of(spark))
        opened(table, rows_of(spark)).write(rows_of(spark), 0)
        with pytest.raises(PySparkException, match="entries were trimmed"):
            stood_still.write(gone, 0)
        written = spark.table(name) if table.name else spark.read.parquet(str(table.path))
        assert sorted(row["id"] for row in written.collect()) == list(range(9))


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv", "xml"])
def test_a_batch_that_was_cut_leaves_nothing_of_its_first_run(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    options = {"xml": {"rowTag": "row"}, "csv": {"header": "true"}}.get(kind, {})
    table = TableConfig("table", kind, str(path), partition_by=["key"], options=options)
    table.check_format(spark)
    first = opened(table, rows_of(spark))
    staged(path, "dead", "batch=bquery-1")
    staged(path, "other", "batch=bother-1")
    staged(path, "begun", "")
    run_again(rows_of(spark), first, opened(table, rows_of(spark)))
    read = spark.read.format(kind).options(**options).schema("id BIGINT, key STRING, batch STRING").load(str(path))
    assert sorted(row["id"] for row in read.collect()) == list(range(9))
    assert {row["key"] for row in read.collect()} == {f"{KEY}0", f"{KEY}1", None}
    kept = {file.name for file in path.iterdir() if file.name.startswith(".spark")}
    assert kept == {".spark-staging-other", ".spark-staging-begun"}, "of others, who may still write"


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_table_of_the_catalog_has_a_partition_for_each_batch(spark: SparkSession, name: str, kind: str) -> None:
    table = TableConfig("table", kind, name=name, partition_by=["key"])
    run_again(rows_of(spark), opened(table, rows_of(spark)), opened(table, rows_of(spark)))
    assert sorted(row["id"] for row in spark.table(name).collect()) == list(range(9))
    assert spark.conf.get("spark.sql.sources.partitionOverwriteMode", None) is None, "the session is as it was"
    # Columns find their places by their names.
    other_order = spark.sql("SELECT 'key 0' AS key, 9L AS id")
    opened(table, other_order).write(other_order, 3)
    assert spark.table(name).where("id = 9").collect()[0]["key"] == "key 0"


def test_a_table_that_is_not_the_job_s_is_left_alone(spark: SparkSession, name: str) -> None:
    rows_of(spark).write.format("parquet").saveAsTable(name)
    with pytest.raises(TableError, match=f"table {name} exists as parquet partitioned by nothing, but the job writes"):
        opened(TableConfig("table", "parquet", name=name), rows_of(spark))
    assert spark.table(name).count() == 9


class Delta(DataSource):
    """A stand-in for Delta, which is in no package that pip has: keeps the last version of each application with its
    rows, and passes over those that it has, as Delta does."""

    @classmethod
    def name(cls) -> str:
        return "delta_like"

    def writer(self, schema: object, overwrite: bool) -> DataSourceArrowWriter:
        assert not overwrite
        return DeltaWriter(Path(self.options["path"]), self.options["txnAppId"], int(self.options["txnVersion"]))


class DeltaWriter(DataSourceArrowWriter):
    def __init__(self, path: Path, application: str, version: int) -> None:
        self._path, self._application, self._version = path, application, version

    def write(self, iterator: Iterator) -> WriterCommitMessage:
        message: Any = WriterCommitMessage()
        message.ids = [one for batch in iterator for one in batch.column("id").to_pylist()]
        return message

    def commit(self, messages: list) -> None:
        told = json.loads(self._path.read_text()) if self._path.exists() else {"versions": {}, "ids": []}
        if told["versions"].get(self._application, -1) < self._version:
            told["versions"][self._application] = self._version
            told["ids"] += [one for message in messages for one in message.ids]
            self._path.write_text(json.dumps(told))


def test_delta_receives_the_number_of_the_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.dataSource.register(Delta)
    monkeypatch.setattr("spark_streams.jobs.output.table_config.ONCE", ("delta_like",))
    path = tmp_path / "table"
    for output in ("table", "late"):
        table = TableConfig.parse({"format": "delta_like", "path": str(path)}, "table", {})
        table.check_format(spark)
        for number in (0, 1, 1, 0):  # a batch that is run again
            opened(table, rows_of(spark), output).write(rows_of(spark).where(f"id = {number}"), number)
    told = json.loads(path.read_text())
    assert told == {"versions": {"query:table": 1, "query:late": 1}, "ids": [0, 1, 0, 1]}


def test_a_table_without_such_means_is_appended_to(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """At least once: that is what `once = false` says."""
    by_path = TableConfig("table", "parquet", str(tmp_path / "out"), partition_by=["key"], once=False)
    by_name = TableConfig("table", "parquet", name=name, once=False)
    for table in (by_path, by_name):
        for number in (0, 0):
            opened(table, rows_of(spark)).write(rows_of(spark), number)
    assert spark.read.parquet(str(tmp_path / "out")).count() == spark.table(name).count() == 18


def test_a_format_may_be_told_by_its_options_where_to_write(spark: SparkSession, tmp_path: Path) -> None:
    """JDBC, to the database that Spark brings."""
    derby = {"url": f"jdbc:derby:;databaseName={tmp_path}/db;create=true", "dbtable": "orders"}
    derby["driver"] = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
    table = TableConfig.parse({"format": "jdbc", "once": False}, "table", derby)
    table.check_format(spark)
    ids = rows_of(spark).select("id")
    opened(table, ids).write(ids, 0)
    opened(table, ids).write(ids, 1)
    assert spark.read.format("jdbc").options(**derby).load().count() == 18


@pytest.mark.parametrize(("kind", "extra"), [("deltalake", "delta"), ("pyiceberg", "iceberg")])
def test_a_package_that_is_not_there_is_named_with_what_installs_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, extra: str
) -> None:
    """Before a table is made."""
    table = TableConfig("table", kind, str(tmp_path / "t"))
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ConfigError, match=rf"has no package {kind}, .*pip install 'spark-streams\[{extra}\]'"):
        table.check_format(spark)
    assert list(tmp_path.iterdir()) == []


def test_a_format_that_spark_does_not_have_is_named_with_where_it_comes_from(spark: SparkSession) -> None:
    for kind in ("delta", "avro"):
        with pytest.raises(ConfigError, match=f"table.format '{kind}': .*spark.jars.packages"):
            TableConfig("table", kind, "out").check_format(spark)


@pytest.mark.parametrize("column", ["http.method", "a`b"])
def test_a_column_of_a_table_of_the_catalog_has_any_name(spark: SparkSession, name: str, column: str) -> None:
    """Also one that partitions it, and where a batch is run again."""
    rows = spark.range(9).select("id", F.lit("x").alias(column))
    run_again(rows, *(opened(TableConfig("table", name=name, partition_by=[column]), rows) for _ in range(2)))
    assert sorted((row["id"], row[column]) for row in spark.table(name).collect()) == [(n, "x") for n in range(9)]
