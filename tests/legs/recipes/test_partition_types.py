"""Each type as a partition of each kind of table: every value is read back as it was, or the type is refused by name.

Run with `-s`, the tests print a line for each type and format.
"""

from __future__ import annotations

import datetime
import json
import struct
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.jobs.output import deltalake_table, pyiceberg_table
from spark_streams.jobs.output.deltalake_table import DeltalakeTable
from spark_streams.jobs.output.owned_table import Compaction
from spark_streams.jobs.output.pyiceberg_table import PyicebergTable
from spark_streams.jobs.output.table_columns import changed_values, check_partition_types, new_table
from spark_streams.jobs.output.table_config import TableConfig
from tests.legs.recipes.tables import Deltalake, Pyiceberg

pytestmark = pytest.mark.spark

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
TEXTS = [
    *("", "a", "0", "007", "1.0", "-1", "true", "null", "NULL", NULL_FOLDER, "NaN", "2020-01-01"),
    *(
        "~",
        "a~b",
        "/",
        "%",
        "%2F",
        "%7E",
        "=",
        "a=b",
        "..",
        ".",
        " ",
        " a ",
        '"',
        "'",
        "\\",
        "\n",
        "\t",
        "\x01",
        "\x7f",
    ),
    *("a:b", "#", "?", "*", "{}", "[x]", "&", "+", "e\u0301", "x" * 200),
]
UNICODE = ["é", "日本", "\U0001f600"]
MOMENTS = [
    datetime.datetime(1, 1, 1),
    datetime.datetime(1582, 10, 4, 23, 59, 59, 999999),
    datetime.datetime(1582, 10, 15),
    datetime.datetime(1900, 1, 1),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime.datetime(1970, 1, 1),
    datetime.datetime(2026, 10, 25, 0, 30),
    datetime.datetime(2026, 10, 25, 1, 30, 0, 1),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
]
FLOATS = [-1.5, 0.0, -0.0, float("nan"), float("inf"), 5e-324, 1.7976931348623157e308]
BYTES = [b"", b"a", b"\0", b"\xff\xfe", b"/", b"~", b"%", bytes(range(256))]


def whole(bits: int) -> list[Any]:
    return [-(1 << (bits - 1)), -1, 0, (1 << (bits - 1)) - 1]


def decimals(*texts: str) -> list[Any]:
    return [Decimal(text) for text in texts]


TYPES: dict[str, tuple[T.DataType, list[Any]]] = {
    "BOOLEAN": (T.BooleanType(), [True, False]),
    "TINYINT": (T.ByteType(), whole(8)),
    "SMALLINT": (T.ShortType(), whole(16)),
    "INT": (T.IntegerType(), whole(32)),
    "BIGINT": (T.LongType(), whole(64)),
    "FLOAT": (T.FloatType(), FLOATS),
    "DOUBLE": (T.DoubleType(), FLOATS),
    "DECIMAL(10,0)": (T.DecimalType(10, 0), decimals("-1", "0", "9999999999", "-9999999999")),
    "DECIMAL(10,2)": (T.DecimalType(10, 2), decimals("-1.10", "-0.01", "0.00", "99999999.99", "-99999999.99")),
    "DECIMAL(38,38)": (T.DecimalType(38, 38), [Decimal("-0.1"), Decimal(1).scaleb(-38)]),
    "STRING": (T.StringType(), [*TEXTS, *UNICODE]),
    "BINARY": (T.BinaryType(), BYTES),
    "DATE": (T.DateType(), list(dict.fromkeys(moment.date() for moment in MOMENTS))),
    "TIMESTAMP": (T.TimestampType(), [moment.replace(tzinfo=datetime.UTC) for moment in MOMENTS]),
    "TIMESTAMP_NTZ": (T.TimestampNTZType(), MOMENTS),
    "INTERVAL": (T.DayTimeIntervalType(), []),
    "ARRAY": (T.ArrayType(T.IntegerType()), []),
    "MAP": (T.MapType(T.StringType(), T.IntegerType()), []),
    "STRUCT": (T.StructType([T.StructField("a", T.IntegerType())]), []),
    "VARIANT": (T.VariantType(), []),
}
REFUSED = {
    "deltalake": {"FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,38)", "BINARY"},
    "pyiceberg": {"FLOAT", "DOUBLE"},
    "parquet": {"FLOAT", "DOUBLE", "BINARY"},
}
NEVER = {"INTERVAL", "ARRAY", "MAP", "STRUCT", "VARIANT"}


def columns_of(name: str) -> T.StructType:
    return T.StructType([T.StructField("k", TYPES[name][0]), T.StructField("n", T.IntegerType())])


def is_refused(kind: str, name: str) -> bool:
    """Whether the type is refused, by name; print it."""
    try:
        check_partition_types("table", kind, ["K"], columns_of(name), "UTC")
    except ConfigError as error:
        print(f"{name:16} {kind:10} refused: {error.message}")
        said = f": {kind} does not keep each value of this type as a partition; partition by "
        return error.message.startswith("table.partition_by names 'k', a ") and said in error.message
    return False


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right)
    return type(left) is type(right) and bool(left == right)


def assert_kept(kind: str, name: str, values: list[Any], rows: list[dict[str, Any]]) -> None:
    """Each value is once in the rows, as it was. n: its position."""
    assert sorted(row["n"] for row in rows) == list(range(len(values)))
    changed = [(values[row["n"]], row["k"]) for row in rows if not same(values[row["n"]], row["k"])]
    assert changed == [], (kind, name)


@pytest.mark.parametrize("kind", REFUSED)
def test_types_that_lose_a_value_are_refused_by_name(kind: str) -> None:
    """Before the first batch. A table that exists decides by its own type."""
    assert {name for name in TYPES if is_refused(kind, name)} == REFUSED[kind] | NEVER


def test_a_time_is_a_folder_only_in_utc() -> None:
    """In a zone with summer time, two times of autumn have one name."""
    columns = columns_of("TIMESTAMP")
    for zone in ("UTC", "Etc/UTC", "Z"):
        check_partition_types("table", "parquet", ["k"], columns, zone)
    for kind in ("deltalake", "pyiceberg"):
        check_partition_types("table", kind, ["k"], columns, "Europe/Berlin")
    with pytest.raises(ConfigError, match=r"in the zone Europe/Berlin, .*set \[spark\] .*timeZone\" = \"UTC\", or"):
        check_partition_types("table", "parquet", ["k"], columns, "Europe/Berlin")


def test_the_plan_says_what_readers_see_changed() -> None:
    columns = T.StructType([*columns_of("STRING"), T.StructField("on", T.DateType())])
    assert changed_values("deltalake", ["k", "on"], columns) == "an empty text of k is written as null"
    assert changed_values("deltalake", ["on"], columns) == ""
    assert changed_values("parquet", ["k"], columns, in_catalog=True) == "an empty text of k is written as null"
    assert changed_values("parquet", ["on"], columns, in_catalog=True) == ""
    assert changed_values("pyiceberg", ["k"], columns) == ""
    assert changed_values("parquet", ["K", "on"], columns) == (
        "readers must declare `k` STRING, `on` DATE: Spark guesses the types of folders, and reads '007' as 7; an "
        "empty text of k is written as null"
    )
    assert new_table(columns)._replace(changed="x").plan == "x"


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are pages, which this process writes."""
    for module in (deltalake_table, pyiceberg_table):
        monkeypatch.setattr(module, "write_in_one_task", lambda page, write: list(write(iter([page]))))
        monkeypatch.setattr(module, "application_of", lambda *_: "query:table")

    def of_pages(schema: Any) -> pa.Schema:
        return schema if isinstance(schema, pa.Schema) else arrow_schema(schema)

    monkeypatch.setattr(deltalake_table, "arrow_schema", of_pages)
    # Texts of null's folder become null, as test_folders_keep_each_value shows.
    monkeypatch.setattr(deltalake_table, "with_null_folders", lambda page, _keys: page)


def pages_of(name: str) -> tuple[list[Any], Any]:
    values = [*TYPES[name][1], None]
    schema = arrow_schema(columns_of(name))
    page = pa.record_batch([pa.array(values, schema.field("k").type), pa.array(range(len(values)), pa.int32())], schema)
    return values, page


@pytest.mark.parametrize("name", sorted(set(TYPES) - REFUSED["deltalake"] - NEVER))
def test_deltalake_keeps_each_value(
    without_spark: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """After a batch, the same batch again, and compactions; and by Delta's log alone."""
    values, page = pages_of(name)
    values = [value for value in values if value not in ("", NULL_FOLDER)]
    numbers = pa.array(range(len(values)), pa.int32())
    page = pa.record_batch([pa.array(values, page.schema.types[0]), numbers], page.schema)
    config = TableConfig("table", "deltalake", str(tmp_path / "t"), partition_by=["k"], compaction=Compaction(2, 1))
    table: Any = DeltalakeTable(None, config, "table")  # type: ignore[arg-type]
    table.prepare(new_table(columns_of(name)), None)
    for number in (0, 0):
        table.write(page, number)
        assert_kept("deltalake", name, values, Deltalake(tmp_path).rows("t"))
    table.write(page, 1)
    rows = Deltalake(tmp_path).rows("t")
    assert Counter((row["n"], row["k"]) for row in rows) == dict.fromkeys(enumerate(values), 2)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message for message in warned if "stays in small files" in message and "~" not in message] == []
    assert len(warned) == (2 if name == "STRING" else 0)
    from deltalake import DeltaTable

    files = len(DeltaTable(str(tmp_path / "t")).file_uris())
    assert files == len(values) + (2 if name == "STRING" else 0), "one for each value, but two of each with a ~"
    if name == "STRING":
        assert_log_names(tmp_path / "t", values)
    print(f"{name:16} deltalake  kept: {len(values)} values, {files} files after the compaction")


def assert_log_names(folder: Path, values: list[Any]) -> None:
    """Delta's log, read without the package, names each text."""
    named = set()
    for log in sorted((folder / "_delta_log").glob("*.json")):
        for line in log.read_text().splitlines():
            if (added := json.loads(line).get("add")) is not None:
                named.add(added["partitionValues"]["k"])
    assert named == set(values)


@pytest.mark.parametrize("name", sorted(set(TYPES) - REFUSED["pyiceberg"] - NEVER))
def test_pyiceberg_keeps_each_value(without_spark: None, tmp_path: Path, name: str) -> None:
    """After a batch and the same batch again; in the data files and in the manifests, which other engines read."""
    values, page = pages_of(name)
    if name in ("STRING", "BINARY"):
        values[-1:] = [values[1] * 1000, None]
        numbers = pa.array(range(len(values)), pa.int32())
        page = pa.record_batch([pa.array(values, page.schema.types[0]), numbers], page.schema)
    kind = Pyiceberg(tmp_path)
    config = TableConfig("table", "pyiceberg", name="shop.t", partition_by=["k"], options=kind.options, catalog="lake")
    table: Any = PyicebergTable(None, config, "table")  # type: ignore[arg-type]
    table.prepare(new_table(columns_of(name)), None)
    for number in (0, 0):
        table.write(page, number)
        assert_kept("pyiceberg", name, values, kind.rows("t"))
    partitions = [row["partition"]["k"] for row in kind.table("t").inspect.partitions().to_pylist()]
    assert len(partitions) == len(values)
    assert set(partitions) == set(values)
    print(f"{name:16} pyiceberg  kept: {len(values)} values")


@pytest.mark.long
@pytest.mark.parametrize("place", ["path", "name"])
def test_folders_keep_each_value(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """After a batch and the same batch again, for a reader that declares the columns. Texts of null's folder are null.

    Texts that are not ASCII need a JVM whose file names are UTF-8.
    """
    encoding = spark.sparkContext._jvm.System.getProperty("sun.jnu.encoding")  # type: ignore[union-attr]
    for name in sorted(set(TYPES) - REFUSED["parquet"] - NEVER):
        values, _ = pages_of(name)
        if encoding != "UTF-8":
            values = [value for value in values if not isinstance(value, str) or value.isascii()]
        columns = columns_of(name)
        rows = spark.createDataFrame([(value, n) for n, value in enumerate(values)], columns).coalesce(1)
        where = str(tmp_path / name) if place == "path" else f"partitioned_{sorted(TYPES).index(name)}"
        table = TableConfig.parse({place: where, "partition_by": ["k"]}, "table", {})
        for _ in range(2):
            table.open(spark, "table", table.fit(spark, columns)).write(rows, 0)
        read = spark.read.schema(columns).parquet(where) if place == "path" else spark.table(where)
        seen = read.select("k", "n").toArrow().to_pylist()
        kept = [None if value in ("", NULL_FOLDER) else value for value in values]
        assert_kept("parquet", name, kept, seen)
        print(f"{name:16} parquet    kept ({place}): {len(values)} values")
