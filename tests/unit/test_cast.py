"""Field values to declared types: what fits, what does not, and that both roads agree."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.source.cast import cast_values

UTC = datetime.UTC
US = pa.timestamp("us", tz="UTC")


def cast(value: bytes, to: pa.DataType, beside: bytes | None = None) -> Any:
    """The value cast in a column with `beside`, which may force the value-by-value road."""
    column, _ = cast_values(pa.array([value] if beside is None else [value, beside], pa.binary()), to)
    return column[0].as_py()


@pytest.mark.parametrize("beside", [None, b"not a value"])
@pytest.mark.parametrize(
    ("value", "to", "expected"),
    [
        (b"517", pa.int32(), 517),
        (b"-128", pa.int8(), -128),
        (b"9223372036854775807", pa.int64(), 2**63 - 1),
        (b"2.5", pa.float64(), 2.5),
        (b"1e3", pa.float32(), 1000.0),
        (b"NaN", pa.string(), "NaN"),
        (b"12.30", pa.decimal128(6, 2), Decimal("12.30")),
        (b"true", pa.bool_(), True),
        (b"0", pa.bool_(), False),
        (b"2013-01-31", pa.date32(), datetime.date(2013, 1, 31)),
        (b"2013-01-01T10:00:00Z", US, datetime.datetime(2013, 1, 1, 10, tzinfo=UTC)),
        (b"2013-01-01T10:00:00.123456Z", US, datetime.datetime(2013, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)),
        (b"2013-01-01T10:00:00", pa.timestamp("us"), datetime.datetime(2013, 1, 1, 10)),
        (b"\xc3\xa9", pa.string(), "é"),
        (b"\xff", pa.binary(), b"\xff"),
        (b"\xff", pa.string(), "\ufffd"),
    ],
)
def test_a_value_that_fits(value: bytes, to: pa.DataType, expected: object, beside: bytes | None) -> None:
    assert cast(value, to, beside) == expected


@pytest.mark.parametrize(
    ("value", "to", "expected"),
    [
        (b" 42 ", pa.int32(), 42),
        (b"+7", pa.int32(), 7),
        (b"1500000000000", US, datetime.datetime(2017, 7, 14, 2, 40, tzinfo=UTC)),
        (b"2013-01-01 10:00", US, datetime.datetime(2013, 1, 1, 10, tzinfo=UTC)),
        (b"2013-01-01T10:00:00+02:00", US, datetime.datetime(2013, 1, 1, 8, tzinfo=UTC)),
    ],
)
def test_a_value_that_arrow_refuses_and_we_read(value: bytes, to: pa.DataType, expected: object) -> None:
    assert cast(value, to) == expected


@pytest.mark.parametrize(
    ("value", "to"),
    [
        (b"", pa.int32()),
        (b"abc", pa.int32()),
        (b"0x10", pa.int32()),
        (b"128", pa.int8()),
        (b"1.5", pa.int64()),
        (b"1_000", pa.float64()),
        (b"abc", pa.float64()),
        (b"12.345", pa.decimal128(6, 2)),
        (b"123456.00", pa.decimal128(6, 2)),
        (b"maybe", pa.bool_()),
        (b"2013-13-01", pa.date32()),
        (b"yesterday", US),
        (b"9" * 30, US),
        (b"0001-01-01T00:00:00+05:00", pa.timestamp("us")),
    ],
)
def test_a_value_that_does_not_fit_is_null_and_marked(value: bytes, to: pa.DataType) -> None:
    column, unfit = cast_values(pa.array([value, None], pa.binary()), to)
    assert column.to_pylist() == [None, None]
    assert unfit is not None
    assert unfit.to_pylist() == [True, False]


int32_texts = st.integers(-(2**31), 2**31 - 1).map(lambda n: b"%d" % n)


@given(st.lists(st.one_of(st.none(), int32_texts, st.binary(max_size=4)), max_size=20))
def test_integers_are_cast_alike_alone_and_together(values: list[bytes | None]) -> None:
    together = cast_values(pa.array(values, pa.binary()), pa.int32())[0].to_pylist()
    alone = [cast_values(pa.array([value], pa.binary()), pa.int32())[0][0].as_py() for value in values]
    assert together == alone
