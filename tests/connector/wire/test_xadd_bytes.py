"""Columns to XADD bytes: the same bytes as packing row by row, and how each type is written."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.sink.fields import check_writable, text_columns
from spark_streams.connector.wire.connection import pack
from spark_streams.connector.wire.xadd_bytes import encode_xadd

values = st.one_of(st.none(), st.binary(max_size=12), st.binary(min_size=95, max_size=105))


@given(st.lists(st.tuples(values, values, values), min_size=1, max_size=20), st.binary(min_size=1, max_size=5))
def test_the_bytes_are_those_of_packing_row_by_row(rows: list[tuple[bytes | None, ...]], stream: bytes) -> None:
    names = [b"a", b"longer-name", b"c\r\n"]
    columns = [pa.array(column, pa.binary()) for column in zip(*rows, strict=True)]
    requests, filled = encode_xadd(stream, names, columns)
    for at, row in enumerate(rows):
        pairs = [part for pair in zip(names, row, strict=True) if pair[1] is not None for part in pair]
        assert bytes(requests.slice(at, at + 1)) == pack("XADD", stream, "*", *[p for p in pairs if p is not None])
        assert filled[at].as_py() == len(pairs) // 2


def test_a_sliced_batch_is_encoded_from_its_own_rows() -> None:
    column = pa.array([b"a", b"b", b"c", b"d"], pa.binary()).slice(1, 2)
    requests, _ = encode_xadd(b"s", [b"f"], [column])
    assert bytes(requests.slice(0, 2)) == pack("XADD", "s", "*", "f", "b") + pack("XADD", "s", "*", "f", "c")


TYPES = {
    "long": pa.array([-(2**63)], pa.int64()),
    "double": pa.array([0.1], pa.float64()),
    "big": pa.array([1e300], pa.float64()),
    "decimal": pa.array([Decimal("-0.50")], pa.decimal128(10, 2)),
    "small": pa.array([Decimal("0.00000001")], pa.decimal128(38, 18)),
    "large-binary": pa.array([b"\xff"], pa.large_binary()),
    "floats": pa.array([[0.1, float("nan"), float("-inf")]], pa.list_(pa.float32())),
    "yes": pa.array([True]),
    "date": pa.array([datetime.date(2013, 1, 31)]),
    "at": pa.array([datetime.datetime(2013, 1, 31, 10, 0, 0, 5, tzinfo=datetime.UTC)], pa.timestamp("us", tz="UTC")),
    "local": pa.array([datetime.datetime(2013, 1, 31, 10)], pa.timestamp("us")),
    "text": pa.array(["é\r\n"]),
    "raw": pa.array([b"\xff\x00"], pa.binary()),
    "list": pa.array([[1, None, 2]], pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "d": datetime.date(2013, 1, 31)}], pa.struct([("a", pa.int32()), ("d", pa.date32())])),
    "map": pa.array([[("k", b"\x00")]], pa.map_(pa.string(), pa.binary())),
}
WRITTEN = {
    "long": b"-9223372036854775808",
    "double": b"0.1",
    "big": b"1e+300",
    "decimal": b"-0.50",
    "small": b"0.000000010000000000",
    "large-binary": b"\xff",
    "floats": b'[0.1,"NaN","-Infinity"]',
    "yes": b"true",
    "date": b"2013-01-31",
    "at": b"2013-01-31T10:00:00.000005Z",
    "local": b"2013-01-31T10:00:00.000000",
    "text": "é\r\n".encode(),
    "raw": b"\xff\x00",
    "list": b"[1,null,2]",
    "struct": b'{"a":1,"d":"2013-01-31"}',
    "map": b'{"k":"AA=="}',
}


@pytest.mark.parametrize("name", TYPES)
def test_how_a_type_is_written(name: str) -> None:
    fields = text_columns(pa.RecordBatch.from_arrays([TYPES[name]], [name]), "omit")
    assert fields.values[0].to_pylist() == [WRITTEN[name]]


@given(st.floats(allow_nan=False))
def test_a_double_reads_back_as_the_same_number(number: float) -> None:
    fields = text_columns(pa.RecordBatch.from_arrays([pa.array([number])], ["n"]), "omit")
    assert float(fields.values[0][0].as_py()) == number


def test_nulls_are_left_out_or_empty() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([None, 1], pa.int32())], ["n"])
    assert text_columns(batch, "omit").values[0].to_pylist() == [None, b"1"]
    assert text_columns(batch, "empty").values[0].to_pylist() == [b"", b"1"]


pair = st.tuples(st.binary(max_size=4), st.binary(max_size=4))


@given(st.lists(st.tuples(st.one_of(st.none(), st.lists(pair, max_size=3)), values), min_size=1, max_size=8), st.data())
def test_a_column_of_fields_is_written_field_by_field(
    rows: list[tuple[list[tuple[bytes, bytes]] | None, bytes | None]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    maps = pa.array([one for one, _ in rows], pa.map_(pa.binary(), pa.binary())).slice(start)
    column = pa.array([two for _, two in rows], pa.binary()).slice(start)
    requests, filled = encode_xadd(b"s", [b"n"], [column], maps)
    for at, (one, two) in enumerate(rows[start:]):
        fields = [part for pair in one or [] for part in pair] + ([b"n", two] if two is not None else [])
        assert bytes(requests.slice(at, at + 1)) == pack("XADD", "s", "*", *fields)
        assert filled[at].as_py() == len(fields) // 2


LATE = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))


@pytest.mark.parametrize(
    "late",
    [
        LATE,
        pa.StructArray.from_arrays([LATE], ["at"]),
        pa.ListArray.from_arrays([0, 1], LATE.cast(pa.timestamp("us"))),
        pa.MapArray.from_arrays([0, 1], LATE, pa.array([1])),
        pa.StructArray.from_arrays([pa.array([2**31 - 1], pa.int32()).cast(pa.date32())], ["day"]),
    ],
    ids=["timestamp", "struct", "array", "key of a map", "date"],
)
def test_what_cannot_be_written_as_a_date_is_refused(late: pa.Array) -> None:
    """Also within JSON, in which Arrow's text for it would be written as the value."""
    with pytest.raises(SchemaError, match="column 't' holds a (timestamp|date)"):
        text_columns(pa.RecordBatch.from_arrays([late], ["t"]), "omit")


@pytest.mark.parametrize("schema", [[], [("d", pa.duration("us"))]])
def test_columns_that_cannot_be_written_are_refused(schema: list[tuple[str, pa.DataType]]) -> None:
    with pytest.raises(SchemaError, match="RSTREAM_SCHEMA"):
        check_writable(pa.schema(schema))


leaves = st.one_of(st.none(), st.text(max_size=6), st.sampled_from(['"', "\\", "\x01\n", "é\u2028"]))
rows_of_nested = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "l": st.one_of(st.none(), st.lists(leaves, max_size=3)),
            "m": st.one_of(
                st.none(), st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.integers(0, 9))))
            ),
            "s": st.one_of(st.none(), st.fixed_dictionaries({"b": st.one_of(st.none(), st.booleans())})),
        }
    ),
)
NESTED = pa.struct(
    [
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("s", pa.struct([("b", pa.bool_())])),
    ]
)


@pytest.mark.in_turn
@given(st.lists(rows_of_nested, min_size=1, max_size=6), st.data())
def test_nested_values_are_the_json_that_python_writes(rows: list[dict[str, Any] | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    column = pa.array([None, *rows], NESTED).slice(1 + start)
    texts = text_columns(pa.RecordBatch.from_arrays([column], ["n"]), "omit").values[0].to_pylist()
    for text, row in zip(texts, rows[start:], strict=True):
        # A map may hold a key twice; JSON's readers take the last, and so does dict.
        expected = row and {**row, "m": None if row["m"] is None else dict(row["m"])}
        assert (None if text is None else json.loads(text)) == expected


@given(st.lists(st.tuples(st.sampled_from([b"a", b"{b}", b"c\r\n"]), st.one_of(st.none(), st.just("5-1"))), min_size=1))
def test_each_row_may_have_its_own_stream_and_id(rows: list[tuple[bytes, str | None]]) -> None:
    streams = pa.array([stream for stream, _ in rows], pa.binary()).dictionary_encode()
    ids = pa.array([one for _, one in rows], pa.string())
    values = pa.array([b"v" * (300 * (at % 2)) for at in range(len(rows))], pa.binary())
    requests, _ = encode_xadd(streams, [b"n"], [values], ids=ids)
    for at, (stream, one) in enumerate(rows):
        assert bytes(requests.slice(at, at + 1)) == pack("XADD", stream, one or "*", "n", b"v" * (300 * (at % 2)))
