"""Values that are cast from the reply's own bytes equal the same values cast as texts, and others are left to that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.source.rows import plain as module
from spark_streams.connector.source.rows.columns import Columns, cast_values
from spark_streams.connector.source.rows.plain import plain_columns
from spark_streams.connector.wire.entry_page import VectorPage

TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(),
    pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.decimal128(10, 2), pa.decimal128(38, 18), pa.decimal128(5, 0),
]  # fmt: skip

sign = st.sampled_from(["", "", "-", "+", "--", " "])
digits = st.one_of(
    st.integers(0, 10**19).map(str), st.integers(0, 300).map(str), st.text("0123456789", max_size=18), st.just("00000")
)
bounds = st.sampled_from(
    [str(sign * 2**bits + off) for sign in (1, -1) for bits in (7, 15, 24, 31, 53, 63) for off in (-1, 0, 1)]
)
number = st.builds(
    lambda *parts: "".join(parts), sign, digits, st.sampled_from(["", "", "."]), st.text("0123456789", max_size=9)
)
fixed = st.builds(
    lambda negative, whole, part: f"{'-' * negative}{whole}.{part:02d}",
    st.booleans(),
    st.integers(0, 10**7),
    st.integers(0, 99),
)
borders = st.sampled_from(
    [
        *["", "-", ".", "-.", "1.", ".5", "-.5", "-0", "-0.0", "0.1", "1e3", "1..2", "1.2.3", "٣", "1٣", "0x10", "/"],
        *[":", "1:", "9/", "\0001", "1\0", " 1", "1 ", "true", "false", "True", "TRUE", "1", "0", "truee", "alse"],
        *["rue", "nan", "inf", "12345678", "123456789", "1234567890123456", "12345678901234567"],
        *["123456789012345.6", "16777217", "1677721.7", "0.0000001", "0.00000001"],
    ]
)
two = st.integers(0, 99).map("{:02d}".format)
year = st.one_of(st.integers(1590, 2410), st.integers(0, 9999)).map("{:04d}".format)
day = st.builds(
    "{}-{}-{}".format,
    year,
    st.one_of(two, st.integers(1, 12).map("{:02d}".format)),
    st.one_of(two, st.integers(1, 31).map("{:02d}".format)),
)
likely_clock = st.builds("{:02d}:{:02d}:{:02d}".format, st.integers(0, 24), st.integers(0, 60), st.integers(0, 60))
clock = st.one_of(likely_clock, st.sampled_from(["1:00:000", "10:00", "10.00.00", "1a:00:00", "00:0٣:0"]))
second_part = st.sampled_from(["", "Z", ".5", ".123456", ".000001Z", ".1234567", "+02:00", "z", ".12a", "."])
moment = st.builds(lambda *parts: "".join(parts), day, st.sampled_from(["T", " ", "t", "-"]), clock, second_part)
text = st.one_of(number, fixed, bounds, borders, day, moment)


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def page_of(columns: Sequence[Sequence[str]]) -> VectorPage:
    """A page with fields c0, c1, …, of these texts."""
    rows = list(zip(*columns, strict=True))
    parts = [b"*%d\r\n" % len(rows)]
    for index, row in enumerate(rows):
        parts.append(b"*2\r\n%b*%d\r\n" % (bulk(b"%d-0" % (1000 + index)), 2 * len(row)))
        parts += [bulk(b"c%d" % place) + bulk(value.encode()) for place, value in enumerate(row)]
    return VectorPage(b"".join(parts))


def bits(column: pa.Array) -> list[object]:
    """Values with the sign of zero."""
    return [repr(value) for value in column.to_pylist()]


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEWEST", 1)


def check(columns: Sequence[Sequence[str]], to: pa.DataType) -> set[str]:
    """Compare both ways; return the columns that were cast from the reply."""
    page = page_of(columns)
    schema = pa.schema([(f"c{place}", to) for place in range(len(columns))])
    found = plain_columns(page, schema)
    for name, column in found.items():
        column.validate(full=True)
        expected, unfit = cast_values(page.field(name.encode()), to)
        assert unfit is None
        assert bits(column) == bits(expected)
    return set(found)


@given(st.sampled_from(TYPES), st.data())
def test_any_texts(to: pa.DataType, data: st.DataObject) -> None:
    """What is cast from the reply equals the cast of the texts, alone and beside another column."""
    kind = data.draw(st.sampled_from([text, number, fixed, bounds, borders, day, moment]))
    rows = data.draw(st.integers(1, 4))
    columns = data.draw(st.lists(st.lists(kind, min_size=rows, max_size=rows), min_size=1, max_size=3))
    check(columns, to)


@pytest.mark.parametrize(
    ("to", "texts"),
    [
        (pa.int32(), ["0", "-2147483648", "2147483647", "007"]),
        (pa.int64(), ["1234567890123456", "-1", "12345678"]),
        (pa.float64(), ["-12.345", "0.5", "-0", "123456789012.25", ".5", "7."]),
        (pa.float32(), ["-12.5", "1677721.6"]),
        (pa.bool_(), ["true", "false", "true"]),
        (pa.date32(), ["2024-02-29", "1600-01-01", "2399-12-31"]),
        (pa.timestamp("us", tz="UTC"), ["2013-01-31T05:15:00Z", "1999-12-31T23:59:59Z"]),
        (pa.timestamp("us"), ["2013-01-31 05:15:00.25", "1969-12-31 23:59:59.99"]),
        (pa.timestamp("us"), ["1700000000000", "5"]),
        (pa.decimal128(10, 2), ["-12.3", "99999999", "0.05"]),
    ],
)
def test_plain_texts(to: pa.DataType, texts: list[str]) -> None:
    """The usual forms are cast from the reply, and a column of another form does not hinder the one beside it."""
    assert check([texts], to) == {"c0"}
    assert check([texts, texts[::-1], ["other"] * len(texts)], to) == {"c0", "c1"}


@pytest.mark.parametrize("count", [20, 2000])
@pytest.mark.parametrize(
    ("null_values", "numbers", "flags", "texts"),
    [
        ((), [1, 0, -999], [True, False, True], ["a", "NA", ""]),
        ((b"NA",), [1, 0, -999], [True, False, True], ["a", None, ""]),
        ((b"-999", b"0"), [1, None, None], [True, False, True], ["a", "NA", ""]),
        ((b"false", b""), [1, 0, -999], [True, None, True], ["a", "NA", None]),
    ],
    ids=str,
)
def test_null_values_are_null_also_if_they_are_plain(
    count: int, null_values: tuple[bytes, ...], numbers: list[Any], flags: list[Any], texts: list[Any]
) -> None:
    """Few rows are cast by Arrow, many from the reply."""
    fields = [["1", "0", "-999"], ["true", "false", "true"], ["a", "NA", ""]]
    page = page_of([field * count for field in fields])
    schema = pa.schema([("c0", pa.int32()), ("c1", pa.bool_()), ("c2", pa.string())])
    batch = Columns(schema, True, "FAILFAST", null_values=null_values).batch(page, "s").batch
    assert batch.to_pydict() == {"c0": numbers * count, "c1": flags * count, "c2": texts * count}
