"""Field values to declared types: what fits, what does not, and that both roads agree."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.connector.source.rows.columns import cast_values
from spark_streams.connector.source.rows.text_forms import SCALARS, ScalarKind, TextForm, scalar_kind
from tests.seeds import TIMES

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
        (b" ", pa.int32()),
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
        (b"300000-01-01T00:00:00", pa.timestamp("us")),
        (b"2013-02-30", pa.date32()),
        (b"2013-02-30T10:00:00Z", US),
        (b"2013-01-01T24:00", US),
        (b"2013-01-01Z", US),
        (b"9" * 40, pa.int64()),
        (b"9223372036854775808", pa.int64()),
        (b"1e3", pa.int32()),
        (b"nan(1)", pa.float64()),
        (b"1e99", pa.decimal128(38, 0)),
        (b"28.2022", pa.decimal128(38, 38)),  # Arrow alone reads 0.9796…
        (b"43785803511972626062450709159.0222", pa.decimal128(38, 10)),
        (b"NaN", pa.decimal128(38, 0)),
        (b"25:00", pa.time64("ns")),
        (b"10:00Z", pa.time64("ns")),
    ],
)
def test_a_value_that_does_not_fit_is_null_and_marked(value: bytes, to: pa.DataType) -> None:
    column, unfit = cast_values(pa.array([value, None], pa.binary()), to)
    assert column.to_pylist() == [None, None]
    assert unfit is not None
    assert unfit.to_pylist() == [True, False]


@pytest.mark.parametrize(
    "to",
    [
        *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(6, 2), pa.decimal128(38, 38), pa.bool_()),
        *(pa.date32(), US, pa.timestamp("us"), pa.time64("ns"), pa.list_(pa.int32()), pa.map_(pa.string(), pa.int32())),
        pa.struct([("x", pa.int32())]),
    ],
    ids=str,
)
@pytest.mark.parametrize("beside", [[], [None], [b""], [b"not a value"]], ids=str)
def test_an_empty_text_is_null_and_fits(to: pa.DataType, beside: list[bytes | None]) -> None:
    column, unfit = cast_values(pa.array([b"", *beside, b""], pa.binary()), to)
    column.validate(full=True)
    assert column.type == to
    assert column.null_count == len(column) == len(beside) + 2
    marked = [False] * len(column) if unfit is None else unfit.to_pylist()
    assert marked == [False, *(value == b"not a value" for value in beside), False]


@pytest.mark.parametrize("to", [pa.string(), pa.binary()], ids=str)
def test_an_empty_text_stays_an_empty_text_in_a_column_of_texts(to: pa.DataType) -> None:
    column, unfit = cast_values(pa.array([b"", b"a"], pa.binary()), to)
    assert (column.null_count, len(column[0].as_py()), unfit) == (0, 0, None)


# -- a column and its values one by one ------------------------------------------------------------------------------

GRAMMAR = {
    "number": r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?",
    "day": r"\d{4}-\d\d-\d\d",
    "time": r"[T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?",
    "zone": r"(Z|[+-]\d\d(:?\d\d)?)",
}


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern.format(**GRAMMAR), text, re.ASCII) is not None


def plain_integer(text: str, to: pa.DataType) -> int | None:
    top = 2 ** (to.bit_width - 1)
    return int(text) if matches(r"[+-]?\d+", text) and -top <= int(text) < top else None


def plain_float(text: str, to: pa.DataType) -> float | None:
    if not matches("{number}", text) and text.lower().lstrip("+-") not in ("nan", "inf", "infinity"):
        return None
    with np.errstate(over="ignore"):
        return float(text) if to == pa.float64() else float(np.float32(float(text)))


def plain_decimal(text: str, to: pa.DataType) -> Decimal | None:
    if not matches("{number}", text):
        return None
    number = Fraction(text) if abs(int(text.lower().partition("e")[2] or 0)) < 1000 else Fraction(1, 7)
    unscaled = number * 10**to.scale
    fits = unscaled.denominator == 1 and abs(unscaled) < 10**to.precision
    return Decimal(unscaled.numerator).scaleb(-to.scale, decimal.Context(prec=99)) if fits else None


def plain_boolean(text: str, _to: pa.DataType) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())


def plain_date(text: str, _to: pa.DataType) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if matches("{day}", text) else None
    except ValueError:
        return None


def plain_timestamp(text: str, to: pa.DataType) -> datetime.datetime | None:
    try:
        if matches(r"[+-]?\d+", text):
            moment = datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(milliseconds=int(text))
        elif matches("{day}({time}{zone}?)?", text):
            moment = datetime.datetime.fromisoformat(text)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment if to.tz is not None else moment.replace(tzinfo=None)


def plain_time(text: str, _to: pa.DataType) -> datetime.time | None:
    try:
        return datetime.time.fromisoformat(text) if matches(r"\d\d(:\d\d(:\d\d(\.\d{{1,6}})?)?)?", text) else None
    except ValueError:
        return None


def plain_string(text: str, _to: pa.DataType) -> str:
    return text


integers = st.one_of(st.integers(-200, 200), st.integers(-(2**65), 2**65)).map(str)
decimals = st.one_of(
    st.decimals(allow_nan=False, min_value=-(10**7), max_value=10**7, places=3).map(str),
    st.from_regex(r"\A-?[0-9]{0,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?\Z"),
)
floats = st.floats(width=32).map(str)
dates = st.dates().map(str)
moments = st.datetimes(min_value=datetime.datetime(2, 1, 1), max_value=datetime.datetime(9998, 1, 1))
zones = st.sampled_from(["", "Z", "+02:00", "-0330", "+14", "-23:59"])
timestamps = st.one_of(
    st.builds(lambda moment, zone: moment.isoformat() + zone, moments, zones),
    st.builds(lambda moment: moment.isoformat(" ", "minutes"), moments),
    dates,
    st.integers(-(10**13), 10**13).map(str),
    st.just("2013-01-01T10:00:00.123456789Z"),
)
odd = st.one_of(
    st.sampled_from(
        [
            "", "-", "+", ".", "1.", ".5", "+7", "-0", "007", "0x10", "0X1F", "1e3", "1E-2", "1_0", "1 0", "\u0663",
            "nan(1)", "-nan", "+inf", "Infinity", "1e400", "TRUE", "False", "t", "yes", "2013", "2013-1-1",
            "2013-02-29", "2013-02-30", "2012-02-29", "2013-00-10", "2013-13-01", "2013-01-01T", "2013-01-01T10",
            "2013-01-01T24:00", "2013-01-01T10:60", "2013-01-01t10:00", "2013-01-01T10:00z", "2013-01-01T10:00:00,5",
            "2013-01-01T10:00:00.", "2013-01-01T10:00:00+24:00", "2013-01-01Z", "20130101", "2013-W01-1", "null",
            "9" * 17, "9" * 20, "0" * 50 + "1", "10:00", "10:00:00.123456", "24:00", "1\n2", "\ufffd",
        ]
    ),
    st.text("0123456789+-.:eETZxnaif ", max_size=12),
)  # fmt: skip
KINDS: list[tuple[pa.DataType, st.SearchStrategy[str], Callable[[str, pa.DataType], Any]]] = [
    *((to, integers, plain_integer) for to in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((to, floats, plain_float) for to in (pa.float32(), pa.float64())),
    *((pa.decimal128(*of), decimals, plain_decimal) for of in ((6, 2), (38, 0), (38, 38), (38, 10), (10, 0))),
    (pa.bool_(), st.sampled_from(["true", "False", "1", "0"]), plain_boolean),
    (pa.date32(), dates, plain_date),
    (US, timestamps, plain_timestamp),
    (pa.timestamp("us"), timestamps, plain_timestamp),
    (pa.time64("ns"), st.times().map(str), plain_time),
    (pa.string(), st.text(max_size=5), plain_string),
]


@pytest.mark.parametrize(("to", "usual", "plain"), KINDS, ids=[str(to) for to, *_ in KINDS])
@settings(max_examples=40 * TIMES, deadline=None)
@given(data=st.data())
def test_a_column_is_cast_as_its_values_are_alone_and_as_python_reads_them(
    to: pa.DataType, usual: st.SearchStrategy[str], plain: Callable[[str, pa.DataType], Any], data: st.DataObject
) -> None:
    """Columns that Arrow casts at once, and columns with anything in them."""
    text = data.draw(st.sampled_from([usual, st.one_of(usual, odd, usual.map(lambda text: f" {text}\t"))]))
    texts = data.draw(st.lists(st.one_of(st.none(), text), max_size=20))
    column, unfit = cast_values(pa.array([t if t is None else t.encode() for t in texts], pa.binary()), to)
    column.validate(full=True)
    assert column.type == to
    marked = [False] * len(texts) if unfit is None else unfit.to_pylist()
    trim = (lambda text: text) if to == pa.string() else str.strip
    for at, one in enumerate(texts):
        expected = None if one is None else plain(trim(one), to)
        alone, alone_unfit = cast_values(pa.array([None if one is None else one.encode()], pa.binary()), to)
        assert repr(column[at]) == repr(alone[0])
        assert marked[at] == (one not in (None, "") and not column[at].is_valid)
        assert marked[at] == (alone_unfit is not None and alone_unfit[0].as_py())
        try:
            found = column[at].as_py()
        except (OverflowError, ValueError):  # beyond Python's calendar, or finer than its microseconds
            assert expected is None
        else:
            assert found == expected or str(found) == str(expected) == "nan", one


def test_one_bad_value_costs_a_few_casts_and_not_one_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"2013-01-%02d" % (1 + i % 31) for i in range(8000)]
    values[4321] = b"2013-02-30"
    values[17] = b"n/a"
    casts: list[int] = []
    kind = scalar_kind(pa.date32())
    assert kind is not None

    def counted(form: TextForm) -> TextForm:
        return TextForm(form.pattern, lambda text, to: (casts.append(len(text)), form.cast(text, to))[1])

    forms = [counted(form) for form in kind.forms]
    monkeypatch.setitem(SCALARS, "date", ScalarKind(kind.includes, kind.direct_cast, forms))
    column, unfit = cast_values(pa.array(values, pa.binary()), pa.date32())
    assert unfit is not None
    assert np.flatnonzero(unfit.to_numpy(zero_copy_only=False)).tolist() == [17, 4321]
    assert column[7999].as_py() == datetime.date(2013, 1, 1 + 7999 % 31)
    assert len(casts) < 40


@pytest.mark.parametrize(
    ("text", "to", "stored"),
    [
        ("12013-01-31", pa.date32(), (datetime.date(2013, 1, 31) - datetime.date(1970, 1, 1)).days + 25 * 146097),
        ("-0001-12-31", pa.date32(), -719529),
        ("+2013-01-31", pa.date32(), (datetime.date(2013, 1, 31) - datetime.date(1970, 1, 1)).days),
        ("10000-01-01T00:00:00.000000Z", US, 253402300800000000),
        ("30489-11-11T16:00:00.000000", pa.timestamp("us"), 900000000000000000),
        ("-0001-12-31T23:59:59.999999Z", US, -62167219200000001),
        ("0000-12-31T23:59:59.999999", US, -62135596800000001),
        ("10000-01-01T00:00:00.1234567+02:00", US, 253402300800000000 - 7_200_000_000 + 123_456),
        ("1500000000000", pa.timestamp("us"), 1_500_000_000_000_000),
        ("-1", US, -1000),
    ],
)
def test_far_years_and_epoch_milliseconds(text: str, to: pa.DataType, stored: int) -> None:
    column, unfit = cast_values(pa.array([text.encode(), b"2013-01-01"], pa.binary()), to)
    assert unfit is None
    assert column.view(pa.int32() if to == pa.date32() else pa.int64())[0].as_py() == stored


def test_bytes_that_are_not_utf_8_harm_no_value_beside_them() -> None:
    values = pa.array([b"a", b"\xffb", None, "é".encode(), b"1"], pa.binary())
    assert cast_values(values, pa.string())[0].to_pylist() == ["a", "\ufffdb", None, "é", "1"]
    assert cast_values(values, pa.int32())[0].to_pylist() == [None, None, None, None, 1]
