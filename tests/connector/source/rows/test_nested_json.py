"""Arrays, structs and maps from JSON: what fits, what does not, and that what the sink writes reads back equal."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.connector.sink.fields import text_columns
from spark_streams.connector.source.rows.columns import cast_values
from spark_streams.connector.source.rows.nested_json import (
    _decoder,
    _Reader,
    decode_deep,
    raw_type,
    read_json,
    read_lines,
)
from tests.seeds import TIMES

UTC = datetime.UTC
_OFF_LIMITS = np.full(256, -7, np.int8)  # what stands behind a buffer is nobody's to read
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
        ('{"a": "x", "b": 2, "a": 3}', pa.map_(pa.string(), pa.int64()), [("b", 2), ("a", 3)]),
        ('{"1": 1, "01": 2, "2": 3}', pa.map_(pa.int32(), pa.int64()), [(1, 2), (2, 3)]),
        ('{"x": "no", "x": 2}', POINT, {"x": 2, "label": None}),
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
        (" ", INTS),
        ("[1", INTS),
        ('{"": 1}', pa.map_(pa.int32(), pa.int32())),
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


@pytest.mark.in_turn
@settings(max_examples=150 * TIMES, deadline=None)
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


@pytest.mark.parametrize("inner", [pa.map_(pa.string(), pa.int32()), pa.list_(pa.int32()), pa.large_list(pa.int32())])
def test_lists_of_no_rows_may_come_without_offsets(inner: pa.DataType) -> None:
    """As Java's Arrow before 18 hands them over: a buffer of no bytes, where one offset is due."""
    none = [None, pa.foreign_buffer(_OFF_LIMITS.ctypes.data + 64, 0, _OFF_LIMITS)]
    of = pa.struct([inner.key_field, inner.item_field]) if pa.types.is_map(inner) else inner.value_type
    empty = pa.Array.from_buffers(inner, 0, none, children=[pa.array([], of)])
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), empty)
    fields = text_columns(pa.RecordBatch.from_arrays([lists], names=["a"]), "omit")
    assert [column.to_pylist() for column in fields.values] == [[b"[]", b"[]"]]


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


# -- Arrow's reader and the exact one ----------------------------------------------------------------------------------

SHAPES = [
    INTS,
    POINT,
    pa.list_(POINT),
    pa.list_(pa.float64()),
    pa.struct([("x", pa.bool_()), ("label", pa.list_(pa.date32())), ("v", pa.decimal128(6, 2))]),
    pa.list_(pa.field("element", pa.int32(), nullable=False)),
    pa.struct([("x", pa.struct([pa.field("x", pa.int32(), nullable=False)])), ("label", pa.string())]),
]
TOKENS = [
    "[", "]", "{", "}", ",", ":", '"x"', '"label"', '"v"', '"w"', "1", "-0", "01", "1.5", "1e3", "null", "true", "NaN",
    "-NaN", "Inf", "-Infinity", '"a"', '"2013-01-31"', '"1.50"', " ", "\n", "\x00", '"\\udc00"', '"\\ud800"',
    '"\\u0000"', '"\n"', "}\n{", "[1]", '{"x":1}', '],"w":[', '}{"v":', '},"v":{', "/**/", "'", '"', "é", "\\",
    "1,2", "[1],[2]",
]  # fmt: skip
names = st.sampled_from(["x", "label", "v", "w"])
leaf = st.sampled_from([None, True, 1, -5, 2**40, 1.5, "a", "é\\", "2013-01-31", "1.50", "Infinity", "Inf"])
values_of_json = st.recursive(
    leaf,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(names, part, max_size=3),
    max_leaves=6,
)
usual = {
    INTS: st.lists(st.none() | st.integers(-9, 9), max_size=3),
    POINT: st.fixed_dictionaries({}, optional={"x": st.none() | st.integers(0, 9), "label": st.text(max_size=3)}),
}
json_texts = st.one_of(
    values_of_json.map(json.dumps),
    st.lists(st.sampled_from(TOKENS), max_size=6).map("".join),
    st.sampled_from(["[]", "{}", "null", "[1]", '{"x":1}', '{"x":1,"w":[[{}]]}', '{"w":{"x":"Infinity"},"x":2}']),
)


@pytest.mark.in_turn
@settings(max_examples=300 * TIMES, deadline=None)
@given(st.data())
def test_arrows_reader_and_the_exact_one_read_the_same(data: st.DataObject) -> None:
    """Whatever read_lines accepts, row by row reading gives as well; and a page gives what its rows give alone."""
    to = data.draw(st.sampled_from(SHAPES))
    odd = data.draw(st.booleans())
    text = json_texts if odd or to not in usual else st.one_of(usual[to].map(json.dumps), st.just("null"))
    texts = data.draw(st.lists(st.none() | text, min_size=1, max_size=8))
    column = pa.array(texts, pa.string())
    exact, unfit = _Reader(len(texts)).read(column, to)
    exact.validate(full=True)
    raw = raw_type(to)
    assert raw is not None
    try:
        read_lines(column, raw)
    except pa.ArrowInvalid:
        assert odd or to not in usual, "what is usual is read at once"
    found, found_unfit = read_json(column, to)
    found.validate(full=True)
    assert str(found.to_pylist()) == str(exact.to_pylist())
    assert found_unfit == unfit


def test_undeclared_fields_and_a_bad_row_do_not_send_a_page_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    exact = _Reader.read
    monkeypatch.setattr(_Reader, "read", lambda self, text, to: (read.append(len(text)), exact(self, text, to))[1])
    texts: list[str | None] = [json.dumps({"x": i, "label": "a", "more": {"deep": [1]}}) for i in range(3000)]
    assert not any(cast(texts, POINT)[1])
    assert read == []
    texts[1234] = '{"x": 1'
    values, unfit = cast(texts, POINT)
    assert [at for at, bad in enumerate(unfit) if bad] == [1234]
    assert values[2999] == {"x": 2999, "label": "a"}
    assert sum(read) <= 50


def test_a_text_that_is_a_line_of_its_own_making_harms_nobody() -> None:
    """Texts that close the line's object and open another, or go on after a zero byte: as many rows, not these."""
    texts: list[str | None] = ["[1]", '[2]}{"v":[3]', "[4]}\x00", "[5]", '[6],"w":[7]', '[8],"v":[9]', "[10"]
    values, unfit = cast(texts, INTS)
    assert values == [[1], None, None, [5], None, None, None]
    assert unfit == [False, True, True, False, True, True, True]


@pytest.mark.parametrize(
    ("to", "good"),
    [(INTS, [1]), (POINT, {"x": 1, "label": "a"}), (pa.list_(POINT), [{"x": 1, "label": "a"}])],
    ids=["list", "struct", "list of structs"],
)
@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '{"w":' + "[" * 1_000_000 + "]" * 1_000_000 + "}"], ids=["bare", "within"]
)
def test_a_million_open_brackets_are_survived(to: pa.DataType, good: object, text: str) -> None:
    undeclared = to == POINT and text[0] == "{"  # a field that nobody asks for may hold anything
    assert cast([text], to) == ([{"x": None, "label": None}] if undeclared else [None], [not undeclared])
    values, unfit = cast([json.dumps(good), text], to)
    assert values[0] == good
    assert unfit == [False, not undeclared]


DEEP = "[" * 5_000 + "1" + "]" * 5_000
DEEP_OBJECT = '{"a":' * 5_000 + "null" + "}" * 5_000


@pytest.mark.parametrize("to", [INTS, POINT, pa.map_(pa.string(), pa.int32()), pa.list_(POINT), pa.list_(pa.binary())])
@pytest.mark.parametrize("deep", [DEEP, DEEP_OBJECT, DEEP[:-1], DEEP + "]", DEEP.replace("1", "x")])
def test_a_deep_text_is_read_alike_alone_and_beside_others(to: pa.DataType, deep: str) -> None:
    """Beside rows that Arrow reads, and beside some that it does not, so that Python reads them row by row."""
    good = {INTS: "[1]", POINT: '{"x": 1}'}.get(to, "[]" if pa.types.is_list(to) else "{}")
    others = [good, '{"x": 1, "x": 2}', "[", "[[1]]", '{"label": 1}', "null"]
    for text in (deep, f'{{"x": 1, "more": {deep}}}', f'{{"x": {deep}}}', f"[1, {deep}]", f'[{{"more": {deep}}}]'):
        alone = cast([text], to)
        for beside in (*([other] for other in others), others, [good] * 200, ["["] * 200):
            values, unfit = cast([*beside, text], to)
            assert (values[-1:], unfit[-1:]) == alone


def test_a_text_of_depth_100_000() -> None:
    text = '{"x": 1, "more": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for beside in ([], ['{"x": 1, "x": 2}'], ["["], ['{"x": 2}'] * 100):
        assert cast([*beside, text], POINT)[0][-1] == {"x": 1, "label": None}


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda parts: st.one_of(st.lists(parts, max_size=3), st.dictionaries(st.text(max_size=3), parts, max_size=3)),
)


@given(json_values, st.data())
def test_a_text_of_any_depth_is_read_as_pythons_reader_reads_it(value: object, data: st.DataObject) -> None:
    """Also a text that is cut, or in which a character is another one."""
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + data.draw(st.sampled_from(["", "", " ", ",", "]", "}", '"', ":", "1", "\0"])) + text[place:]
    try:
        expected = _decoder.decode(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - any
            decode_deep(text, _decoder.raw_decode)
    else:
        assert decode_deep(text, _decoder.raw_decode) == expected
