"""Types and names of columns that deltalake and pyiceberg write as they are, and those that are refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.output.table_columns import check_column_types
from tests.legs.recipes.tables import KINDS, Kind
from tests.legs.recipes.test_tables import run, toml, write
from tools.servers.server import Server

pytestmark = pytest.mark.spark


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return KINDS[request.param](tmp_path)


REFUSED = {
    "VARIANT": {"deltalake", "pyiceberg"},
    "INTERVAL DAY": {"deltalake", "pyiceberg"},
    "INTERVAL MONTH": {"deltalake", "pyiceberg"},
    "ARRAY<VARIANT>": {"deltalake", "pyiceberg"},
    "STRUCT<x: ARRAY<INTERVAL DAY>>": {"deltalake", "pyiceberg"},
    "STRUCT<a: INT, A: INT>": {"deltalake"},
    "ARRAY<STRUCT<b: STRUCT<a: INT, A: INT>>>": {"deltalake", "pyiceberg"},
    "ARRAY<STRUCT<z: INT>>": {"pyiceberg"},
    "MAP<STRING, STRUCT<z: INT>>": {"pyiceberg"},
    "STRUCT<x: ARRAY<STRUCT<z: INT>>>": {"pyiceberg"},
    "ARRAY<ARRAY<INT>>": set(),
    "MAP<STRING, ARRAY<INT>>": set(),
    "STRUCT<a: STRUCT<b: INT>>": set(),
}


@pytest.mark.parametrize("of_column", REFUSED)
def test_a_type_is_refused_before_a_table_is_made_or_each_null_comes_back(
    spark: SparkSession, kind: Kind, of_column: str, tmp_path: Path
) -> None:
    """A null of a type that is written is read as null."""
    rows = spark.sql(f"SELECT 1 AS n, CAST(null AS {of_column}) AS v")
    if kind.name not in REFUSED[of_column]:
        write(rows, kind.settings("t"))
        assert kind.rows("t") == [{"n": 1, "v": None}]
        return
    message = rf"table.format '{kind.name}': column 'v' is .*, and {kind.name} .*as a STRING \(in SQL: .*`v`.*format"
    with pytest.raises(ConfigError, match=message):
        write(rows, kind.settings("t"))
    assert not [file for file in tmp_path.rglob("*") if file.suffix in (".json", ".parquet")]


def test_a_column_of_the_table_that_the_rows_lack_is_null_too(spark: SparkSession) -> None:
    """pyiceberg would write it as an empty one."""
    table = StructType.fromDDL("n INT, v ARRAY<STRUCT<z: INT>>")
    assert isinstance(table, StructType)
    with pytest.raises(ConfigError, match=re.escape("writes a null ARRAY<STRUCT<`z`: INT>> as an empty one")):
        check_column_types("table", "pyiceberg", StructType(table.fields[:1]), table)
    check_column_types("table", "deltalake", table, table)
    check_column_types("table", "parquet", table, table)


@pytest.mark.parametrize("name", ["http.method", "a`b", "it's", "a b"])
def test_a_column_has_any_name(spark: SparkSession, kind: Kind, name: str) -> None:
    quoted = name.replace("`", "``")
    for settings in (kind.settings("t"), {**kind.settings("u"), "partition_by": [name]}):
        for _ in range(2):
            write(spark.sql(f"SELECT 1 AS n, 'x' AS `{quoted}`"), settings)
    for table in ("t", "u"):
        assert kind.rows(table) == [{"n": 1, name: "x"}] * 2


ETL = """
url = "{url}"
source = {{streams = "orders", group = "etl", startingOffsets = "earliest"}}
columns = {{n = "INT", who = "STRING"}}
dead_letters.stream = "orders:dead"
job = {{checkpoint = "{folder}/checkpoint"}}
table = {{{table}}}
"""


@pytest.mark.parametrize("is_output", [False, True])
def test_a_null_in_a_column_that_is_not_null_is_a_dead_letter_of_its_entry(
    spark: SparkSession,
    server: Server,
    kind: Kind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_output: bool,
) -> None:
    """Also of a table that gets other columns of some rows."""
    import pyarrow as pa

    from spark_streams.jobs.programs import etl

    name = "key" if is_output else "n"
    kind.create("t", pa.schema([pa.field(name, pa.int32(), nullable=False), pa.field("who", pa.string())]))
    with server.client(decode_responses=True) as client:
        for fields in ({"n": 1, "who": "ann"}, {"who": "bob"}, {"n": 3}, {"who": "late"}):
            ids = client.xadd("orders", fields)
        table = toml(kind.settings("t"))
        config = ETL.format(url=server.url, folder=tmp_path, table=table)
        if is_output:
            output = f"where = \"who != 'late'\"\nselect = {{key = 'n', who = 'who'}}\ntable = {{{table}}}"
            config = ETL.format(url=server.url, folder=tmp_path, table=f'path = "{tmp_path}/all"')
            config += f'[[output]]\nname = "some"\n{output}\n'
        told: dict[str, Any] = run(spark, etl, config, monkeypatch)
        letters = [fields for _, fields in client.xrange("orders:dead")]
    assert told["reasons"] == {f"null: {name}": 1 if is_output else 2}
    assert letters[0]["who"] == "bob"
    assert any(f"column '{name}', which is NOT NULL in table" in value for value in letters[0].values()), letters
    assert (letters[-1]["dl.id"] == ids) is not is_output
    expected = [(1, "ann")] if is_output else [(1, "ann"), (3, None)]
    assert sorted((row[name], row["who"]) for row in kind.rows("t")) == expected
