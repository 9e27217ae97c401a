"""Rows as tuples, for a Spark that does not take Arrow batches."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.spark import arrow as row_form
from spark_streams.connector.spark.arrow import rows_for_spark, tuples_of

MAP = pa.map_(pa.string(), pa.int64())
SCHEMA = pa.schema([
    ("n", pa.int64()), ("amount", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()),
    ("data", pa.binary()), ("tags", pa.list_(pa.string())), ("counts", MAP),
    ("nested", pa.struct([("maps", pa.list_(MAP))])),
])  # fmt: skip
ROWS = [
    (1, Decimal("12.50"), datetime(2026, 11, 20, 10, 0, 0, 123456, UTC), date(2026, 11, 20), b"\xff\x00", ["a", None],
     {"a": 1}, {"maps": [{"b": 2}, None]}),
    (None, None, None, None, None, None, None, {"maps": None}),
    (3, Decimal("0.01"), datetime(1970, 1, 1, tzinfo=UTC), date(1, 1, 1), b"", [], {}, None),
]  # fmt: skip


def batch() -> pa.RecordBatch:
    columns = [pa.array([row[index] for row in ROWS], field.type) for index, field in enumerate(SCHEMA) if index < 6]
    columns.append(pa.array([[("a", 1)], None, []], MAP))
    columns.append(pa.array([{"maps": [[("b", 2)], None]}, {"maps": None}, None], SCHEMA.field("nested").type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_tuples_have_the_values_of_the_batch() -> None:
    assert list(tuples_of(batch())) == ROWS


def test_a_map_with_a_name_twice_gives_spark_both_pairs() -> None:
    """As the map of an entry's bytes may have. PySpark takes a dict, and asks it for its items."""
    pairs = [(b"a", b"1"), (b"a", b"2"), (b"b", b"3")]
    entry = pa.RecordBatch.from_arrays([pa.array([pairs], pa.map_(pa.binary(), pa.binary()))], ["_fields"])
    [[fields]] = tuples_of(entry)
    assert fields == {b"a": b"2", b"b": b"3"}
    assert list(fields.items()) == pairs


@pytest.mark.parametrize(("days", "kind"), [(2_932_897, pa.date32()), (-719_163, pa.date32()),
    ([2_932_897], pa.list_(pa.date32())), (253_402_300_800_000_000, pa.timestamp("us", "UTC")),
])  # fmt: skip
def test_a_time_that_python_has_not_is_an_error_that_names_its_column(days: object, kind: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([days], kind)], ["seen"])
    with pytest.raises(UnsupportedError, match="column 'seen' has a time outside the years 1 to 9999.*arrowBatches"):
        list(tuples_of(batch))


def test_a_batch_without_columns_has_rows() -> None:
    empty = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert list(tuples_of(empty)) == [(), ()]


@pytest.mark.parametrize(("option", "runtime", "expected"), [
    (None, None, True), (None, "15.4", False), (None, "16.4", True), (None, "client.3.1", True),
    (True, "15.4", True), (False, None, False),
])  # fmt: skip
def test_what_decides(
    option: bool | None, runtime: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    if runtime is not None:
        monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", runtime)
    first = next(rows_for_spark(iter([batch()]), option))
    assert isinstance(first, pa.RecordBatch) == expected


def test_with_an_engine_tuples_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_form, "takes_arrow_batches", lambda: False)
    assert next(rows_for_spark(iter([batch()]), None)) == ROWS[0]
