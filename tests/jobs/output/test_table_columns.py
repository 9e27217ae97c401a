"""Columns, partitions and batches of tables at their limits, without Spark and without the packages that write."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from spark_streams.connector.errors import TableError
from spark_streams.jobs.output import deltalake_table, pyiceberg_table
from spark_streams.jobs.output.deltalake_table import DeltalakeTable
from spark_streams.jobs.output.owned_table import Compaction, TableSettings
from spark_streams.jobs.output.table_columns import check_partitions, compare

REMEDY = "add {columns}"


def struct(*names: str, nullable: bool = True) -> StructType:
    return StructType([StructField(name, LongType(), nullable) for name in names])


@pytest.mark.parametrize(
    ("table", "rows", "holds"),
    [
        (DecimalType(10, 2), DecimalType(9, 1), True),  # eight digits before the point, and eight
        (DecimalType(10, 3), DecimalType(9, 1), False),  # seven, and eight
        (DecimalType(10, 2), DecimalType(10, 3), False),
        (DecimalType(12, 2), IntegerType(), True),  # ten digits before the point
        (DecimalType(11, 2), IntegerType(), False),
        (DecimalType(7, 2), ShortType(), True),
        (DecimalType(6, 2), ShortType(), False),
        (DoubleType(), IntegerType(), True),
        (DoubleType(), LongType(), False),
        (DoubleType(), FloatType(), True),
        (FloatType(), ShortType(), True),
        (FloatType(), IntegerType(), False),
        (FloatType(), DoubleType(), False),
        (LongType(), IntegerType(), True),
        (IntegerType(), LongType(), False),
        (ShortType(), ByteType(), True),
        (ByteType(), ShortType(), False),
        (StringType(), LongType(), False),
    ],
    ids=str,
)
def test_a_column_holds_each_value_of_the_rows_or_is_refused(table: DataType, rows: DataType, holds: bool) -> None:
    theirs, ours = StructType([StructField("n", table)]), StructType([StructField("n", rows)])
    if holds:
        assert compare(ours, theirs, "t", merge=False, remedy=REMEDY).columns == theirs
        return
    with pytest.raises(TableError, match="column n is"):
        compare(ours, theirs, "t", merge=False, remedy=REMEDY)


def test_columns_are_the_same_in_upper_and_lower_case() -> None:
    fit = compare(struct("ID", "b", "New"), struct("id", "B", "old"), "t", merge=True, remedy=REMEDY)
    assert (fit.columns.names, fit.added.names, fit.missing) == (["id", "B", "old", "New"], ["New"], ("old",))


def test_a_column_that_must_not_be_null_is_in_the_rows() -> None:
    table = StructType([*struct("a"), *struct("b", nullable=False), *struct("c")])
    assert compare(struct("b"), table, "t", merge=False, remedy=REMEDY).required == ("b",)
    with pytest.raises(TableError, match="lack column b, which is NOT NULL"):
        compare(struct("a", "c"), table, "t", merge=False, remedy=REMEDY)


def test_partitions_have_an_order() -> None:
    check_partitions("t", ["month", "day"], ["month", "day"])
    with pytest.raises(TableError, match="partitioned by day, month, but the job writes it by month, day"):
        check_partitions("t", ["day", "month"], ["month", "day"])


@pytest.mark.parametrize(("last", "has"), [(None, False), (6, False), (7, True), (8, True)])
def test_a_delta_table_has_the_batches_up_to_the_last_one_of_the_query(last: int | None, has: bool) -> None:
    versions = {"other:main": 99, "7c1:main": last}
    table = SimpleNamespace(transaction_version=versions.get)
    batch = deltalake_table._DeltaBatch("t", [], {}, "7c1:main", 7)
    assert deltalake_table._has(table, batch) is has
    assert deltalake_table._has(table, batch._replace(application=None)) is False


NAMED = deltalake_table._NAMED


@pytest.mark.parametrize(
    ("theirs", "changes"),
    [
        (None, True),
        ("interval 743 hours", True),
        ("interval 744 hours", False),
        ("interval 745 hours", False),
        ("interval 1 hour", True),
        ("interval 2 weeks", False),  # not known to be shorter
    ],
)
def test_replaced_files_are_named_for_no_shorter_time_than_the_table_says(theirs: str | None, changes: bool) -> None:
    ours = {NAMED: "interval 744 hours", "owner": "a"}
    found = {"owner": "a"} if theirs is None else {NAMED: theirs, "owner": "b"}
    changed = deltalake_table._changed(found, ours)
    assert changed == {
        name: ours[name] for name in ours if found.get(name) != ours[name] and (name != NAMED or changes)
    }


@pytest.mark.parametrize(("every", "compacted"), [(0, []), (1, [0, 1, 2, 3, 4, 5, 6]), (3, [2, 5])])
def test_small_files_are_merged_after_each_so_many_batches(
    monkeypatch: pytest.MonkeyPatch, every: int, compacted: list[int]
) -> None:
    seen, number = list[int](), -1
    for name in ("application_of", "write_in_one_task", "arrow_schema"):
        monkeypatch.setattr(deltalake_table, name, lambda *_: None)
    monkeypatch.setattr(deltalake_table, "with_null_folders", lambda rows, _: rows)
    monkeypatch.setattr(DeltalakeTable, "_compact", lambda _: seen.append(number))
    settings = TableSettings("table", "deltalake", "t", compaction=Compaction(every))
    table = DeltalakeTable(None, settings)  # type: ignore[arg-type]
    for number in range(7):
        table.write(SimpleNamespace(schema=None), number)  # type: ignore[arg-type]
    assert seen == compacted


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], []),
        ([0], []),
        ([1, 1], [2]),
        ([3, 1], [3, 1]),
        ([2, 1], [3]),  # exactly the most
        ([2, 1, 2, 2, 1], [3, 4, 1]),
        ([3, 0], [3]),
    ],
)
def test_each_row_is_in_one_part_of_a_large_batch(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], parts: list[int]
) -> None:
    monkeypatch.setattr(pyiceberg_table, "_MOST_BYTES", 3 * 8)
    schema, numbers = pa.schema([("n", pa.int64())]), iter(range(100))
    pages = [pa.record_batch([[next(numbers) for _ in range(size)]], schema) for size in sizes]
    found = [part["n"].to_pylist() for part in pyiceberg_table._in_parts(iter(pages), schema)]
    assert [len(part) for part in found] == parts
    assert [n for part in found for n in part] == list(range(sum(sizes)))
