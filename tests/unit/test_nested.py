"""Arrays, structs and maps from JSON: what fits, what does not, and that what the sink writes reads back equal."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.sink.fields import text_columns
from spark_streams.source.cast import cast_values

UTC = datetime.UTC
US = pa.timestamp("us", tz="UTC")
INTS = pa.list_(pa.int32())
POINT = pa.struct([pa.field("x", pa.int32()), pa.field("label", pa.string())])


def cast(texts: list[str | None], to: pa.DataType) -> tuple[list[Any], list[bool]]:
    column, unfit = cast_values(pa.array([t if t is None else t.encode() for t in texts], pa.binary()), to)
    column.validate(full=True)
    assert column.type == to
    return column.to_pylist(), [False] * len(texts) if unfit is None else unfit.to_pylist()


@pytest.mark.parametrize(
    ("text", "to", "expected"),
    [
        ("[1, 2, null]", INTS, [1, 2, None]),
        (" [] ", INTS, []),
        ('["1", " 2 "]', INTS, [1, 2]),
        ("null", INTS, None),
        ('{"label": "a", "x": 1, "more": [1]}', POINT, {"x": 1, "label": "a"}),
        ("{}", POINT, {"x": None, "label": None}),
        ('{"x": 1, "x": 2}', POINT, {"x": 2, "label": None}),
        ('{"label": 1.50}', POINT, {"x": None, "label": "1.50"}),
        ('{"label": true}', POINT, {"x": None, "label": "true"}),
        ('{"b": 1, "a": null}', pa.map_(pa.string(), pa.int64()), [("b", 1), ("a", None)]),
        ('{"1": {"x": 3}}', pa.map_(pa.int32(), POINT), [(1, {"x": 3, "label": None})]),
        ("[[1], null, []]", pa.list_(INTS), [[1], None, []]),
        ('["AP8=", ""]', pa.list_(pa.binary()), [b"\x00\xff", b""]),
        ('[1.50, "12345678901234567890.12", 1e2]', pa.list_(pa.decimal128(38, 2)),
         [Decimal("1.50"), Decimal("12345678901234567890.12"), Decimal("100.00")]),
        ('[1.5, "Infinity", -Infinity]', pa.list_(pa.float64()), [1.5, float("inf"), float("-inf")]),
        ('["2013-01-31"]', pa.list_(pa.date32()), [datetime.date(2013, 1, 31)]),
        ('["2013-01-31T10:00:00.000001Z", 0]', pa.list_(US),
         [datetime.datetime(2013, 1, 31, 10, 0, 0, 1, UTC), datetime.datetime(1970, 1, 1, tzinfo=UTC)]),
        ("[true, false]", pa.list_(pa.bool_()), [True, False]),
        ('["\\ud83d\\ude00", "\\ud800x"]', pa.list_(pa.string()), ["😀", "\ufffdx"]),
    ],
)  # fmt: skip
def test_json_that_fits(text: str, to: pa.DataType, expected: object) -> None:
    assert cast([text, None, text], to) == ([expected, None, expected], [False, False, False])


@pytest.mark.parametrize(
    ("text", "to"),
    [
        ("", INTS),
        ("[1", INTS),
        ("[1]]", INTS),
        ("[1],[2]", INTS),
        ("1", INTS),
        ('"[1]"', INTS),
        ("{}", INTS),
        ("[1.5]", INTS),
        ('["x"]', INTS),
        ("[true]", INTS),
        ("[[1]]", INTS),
        ("[" * 100_000, INTS),
        ("[]", POINT),
        ('{"x": {}}', POINT),
        ('{"label": ["a"]}', POINT),
        ('{"a": 1, "b": 2}', pa.map_(pa.int32(), pa.int32())),
        ('[["a", 1]]', pa.map_(pa.string(), pa.int32())),
        ('["A"]', pa.list_(pa.binary())),
        ('["é"]', pa.list_(pa.binary())),
        ("[null]", pa.list_(pa.field("element", pa.int32(), nullable=False))),
        ('{"x": null}', pa.struct([pa.field("x", pa.int32(), nullable=False)])),
        ("{}", pa.struct([pa.field("x", pa.int32(), nullable=False)])),
    ],
)
def test_json_that_does_not_fit_is_null_as_a_whole_and_harms_no_row_beside_it(text: str, to: pa.DataType) -> None:
    good = "[]" if pa.types.is_list(to) else '{"x": 1}' if pa.types.is_struct(to) else "{}"
    values, unfit = cast([good, text, None, good], to)
    assert unfit == [False, True, False, False]
    assert values[1] is values[2] is None
    assert values[0] == values[3] is not None


def test_a_null_struct_is_no_null_in_its_fields() -> None:
    to = pa.list_(pa.struct([pa.field("x", pa.int32(), nullable=False)]))
    assert cast(['[null, {"x": 1}]'], to) == ([[None, {"x": 1}]], [False])


# -- what the sink writes ----------------------------------------------------------------------------------------------

SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.text(max_size=6)),
    (pa.binary(), st.binary(max_size=6)),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(6, 2), st.decimals(-9999, 9999, places=2)),
    (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    (pa.decimal128(38, 38), st.decimals(-1, 1, places=38).filter(lambda number: abs(number) < 1)),
    (pa.date32(), st.dates()),
    (US, st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.timestamp("us"), st.datetimes()),
]
KEYS = [(to, values) for to, values in SCALARS if not pa.types.is_binary(to)]
Declared = tuple[pa.DataType, st.SearchStrategy[Any]]


def listed(part: Declared) -> Declared:
    return pa.list_(part[0]), st.lists(st.none() | part[1], max_size=3)


def struct(part: Declared) -> Declared:
    to, values = part
    return pa.struct([("a", to), ("b c", pa.int32())]), st.fixed_dictionaries(
        {"a": st.none() | values, "b c": st.none()}
    )


def mapped(parts: tuple[Declared, Declared]) -> Declared:
    (key, keys), (to, values) = parts
    return pa.map_(key, to), st.dictionaries(keys, st.none() | values, max_size=3).map(
        lambda found: list(found.items())
    )


def nested(parts: st.SearchStrategy[Declared]) -> st.SearchStrategy[Declared]:
    return st.one_of(parts.map(listed), parts.map(struct), st.tuples(st.sampled_from(KEYS), parts).map(mapped))


@settings(max_examples=150, deadline=None)
@given(st.recursive(st.sampled_from(SCALARS), nested, max_leaves=4), st.data())
def test_what_the_sink_writes_reads_back_equal(declared: Declared, data: st.DataObject) -> None:
    to, values = declared
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=5)), to)
    written = text_columns(pa.RecordBatch.from_arrays([column], names=["c"]), "omit").values[0]
    found, unfit = cast_values(written, to)
    assert unfit is None
    found.validate(full=True)
    assert found.equals(column)


@pytest.mark.parametrize("to", [pa.date32(), US, pa.timestamp("us")], ids=str)
def test_far_years_that_the_sink_writes_read_back(to: pa.DataType) -> None:
    days = [-719_529, -10_000_000, 2_932_897, 10_000_000]  # Arrow writes years up to 32767
    if to == pa.date32():
        column = pa.array(days, pa.int32()).view(to)
    else:
        column = pa.array([day * 86_400_000_000 + 7 for day in days]).view(to)
    written = text_columns(pa.RecordBatch.from_arrays([column], names=["c"]), "omit").values[0]
    assert cast_values(written, to)[0].equals(column)


def test_nan_and_a_page_of_json_read_back() -> None:
    to = pa.struct([("f", pa.float64()), ("tags", pa.list_(pa.string())), ("raw", pa.binary())])
    texts = [
        json.dumps({"f": "NaN", "tags": [f"t{i}", None], "raw": base64.b64encode(b"%d" % i).decode()})
        for i in range(900)
    ]
    values, unfit = cast(list(texts), to)
    assert not any(unfit)
    assert values[899]["tags"] == ["t899", None]
    assert values[899]["raw"] == b"899"
    assert str(values[899]["f"]) == "nan"
