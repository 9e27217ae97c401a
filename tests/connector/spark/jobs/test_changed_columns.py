"""The columns of a job's rows are other than those of its table."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_streams.connector.errors import ConfigError, TableError
from spark_streams.jobs.output.table_columns import compare
from spark_streams.jobs.output.table_config import TableConfig

pytestmark = pytest.mark.spark


def struct(ddl: str) -> StructType:
    made = StructType.fromDDL(ddl)
    assert isinstance(made, StructType)
    return made


def compared(rows: str, table: str, merge: bool = False) -> Any:
    return compare(struct(rows), struct(table), "table t", merge=merge, remedy="remedy for {columns}")


def test_of_columns(spark: SparkSession) -> None:
    assert compared("a INT, b STRING", "B STRING, A INT").plan == ""
    assert compared("a INT", "a INT, b STRING").plan == "writes null to b"
    assert compared("a INT, `c d` DATE", "a INT, b STRING", merge=True).plan == "adds `c d` DATE; writes null to b"
    with pytest.raises(TableError, match=r"table t lacks the rows' column `c` DATE, `d` INT: remedy for `c` DATE, `d`"):
        compared("c DATE, a INT, d INT", "a INT")
    with pytest.raises(TableError, match="the rows lack column b, which is NOT NULL in table t"):
        compared("a INT", "a INT, b STRING NOT NULL")


@pytest.mark.parametrize(
    ("rows", "table", "fits"),
    [
        ("INT", "BIGINT", True),
        ("BIGINT", "INT", False),
        ("TINYINT", "SMALLINT", True),
        ("INT", "DOUBLE", True),
        ("BIGINT", "DOUBLE", False),
        ("SMALLINT", "FLOAT", True),
        ("INT", "FLOAT", False),
        ("FLOAT", "DOUBLE", True),
        ("DOUBLE", "FLOAT", False),
        ("INT", "DECIMAL(12,2)", True),
        ("INT", "DECIMAL(11,2)", False),
        ("DECIMAL(8,1)", "DECIMAL(10,2)", True),
        ("DECIMAL(10,2)", "DECIMAL(10,3)", False),
        ("DECIMAL(10,2)", "DECIMAL(10,1)", False),
        ("DECIMAL(10,2)", "DOUBLE", False),
        ("INT", "STRING", False),
        ("DATE", "TIMESTAMP", False),
        ("TIMESTAMP", "TIMESTAMP_NTZ", False),
        ("ARRAY<INT>", "ARRAY<INT>", True),
        ("ARRAY<INT>", "ARRAY<BIGINT>", False),
        ("STRUCT<a: INT>", "STRUCT<A: INT>", True),
    ],
)
def test_of_types(spark: SparkSession, rows: str, table: str, fits: bool) -> None:
    """A value is never rounded or written in another form."""
    if fits:
        assert compared(f"v {rows}", f"v {table}").plan == ""
        return
    with pytest.raises(TableError, match="column v is .* in table t, and .* in the rows: .*dead letter"):
        compared(f"v {rows}", f"v {table}")


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def write(rows: DataFrame, settings: dict[str, Any], number: int) -> str:
    """Write a batch, and return what `--check` says of its columns that come and go."""
    table = TableConfig.parse(settings, "table", {})
    fit = table.fit(rows.sparkSession, rows.schema)
    table.open(rows.sparkSession, "table", fit).write(rows, number)
    return fit._replace(changed="").plan


FIRST = "SELECT 1L AS id, CAST(2.5 AS DECIMAL(10, 2)) AS amount, 'n' AS region, 'ann' AS who"
LATER = "SELECT 'x' AS note, 2 AS id, CAST(3.5 AS DECIMAL(8, 1)) AS amount, 'bob' AS who"
ROWS = [(1, "2.50", "n", None, "ann"), (2, "3.50", None, "x", "bob"), (3, "9.00", None, None, "ann")]


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "catalog"])
def test_columns_come_and_go(spark: SparkSession, tmp_path: Path, name: str, kind: str, once: bool) -> None:
    path = str(tmp_path / "out")
    place = {"name": name} if kind == "catalog" else {"format": kind, "path": path}
    settings = {**place, "partition_by": ["who"], "once": once}
    assert write(spark.sql(FIRST), settings, 0) == ""
    with pytest.raises(TableError, match=r"lacks the rows' column `note` STRING: .*schema = \"merge\""):
        write(spark.sql(LATER), settings, 1)
    assert write(spark.sql(LATER), {**settings, "schema": "merge"}, 1) == "adds `note` STRING; writes null to region"
    short = spark.sql("SELECT 3L AS id, CAST(9 AS DECIMAL(10, 2)) AS amount, 'ann' AS who")
    assert write(short, settings, 2) == "writes null to region, note"
    reader = spark.read.format("orc" if kind == "orc" else "parquet").option("mergeSchema", "true")
    if kind == "json":
        reader = spark.read.format(kind).schema("id BIGINT, amount STRING, region STRING, note STRING, who STRING")
    rows = spark.table(name) if kind == "catalog" else reader.load(path)
    found = sorted((row.id, str(row.amount), row.region, row.note, row.who) for row in rows.collect())
    expected = [(id_, amount.rstrip("0") if kind == "json" else amount, *rest) for id_, amount, *rest in ROWS]
    assert [(id_, amount.rstrip("0") if kind == "json" else amount, *rest) for id_, amount, *rest in found] == expected


def test_a_folder_that_has_no_columns_on_file_is_looked_into(spark: SparkSession, tmp_path: Path) -> None:
    """So is one whose file was cut short."""
    settings = {"path": str(tmp_path), "partition_by": ["month"]}
    rows = spark.sql("SELECT 1 AS id, 5 AS month, 'b0' AS batch")
    rows.write.partitionBy("month", "batch").mode("append").parquet(str(tmp_path))
    with pytest.raises(TableError, match="column id is INT in table .*, and STRING in the rows"):
        write(spark.sql("SELECT 'x' AS id, '06' AS month"), settings, 0)
    assert write(spark.sql("SELECT 2 AS id, '06' AS month"), settings, 0) == ""
    (tmp_path / "_schema.json").write_text('{"type":')
    (tmp_path / "._schema.json.crc").unlink()
    with pytest.raises(TableError, match="column id is INT in table .*, and STRING in the rows"):
        write(spark.sql("SELECT 'x' AS id, '06' AS month"), settings, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "a", "schema": "other"}, 'table.schema must be "strict" or "merge", not \'other\''),
        (
            {"path": "a", "format": "csv", "schema": "merge"},
            'schema = "merge" is for tables.*not for csv',
        ),
        ({"format": "jdbc", "once": False, "schema": "merge"}, "not for jdbc: leave it out"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TableConfig.parse(settings, "table", {})
