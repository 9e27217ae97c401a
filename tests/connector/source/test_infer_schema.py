"""Schema inference: what a field's values say, and what sample they are taken from."""

from __future__ import annotations

import datetime
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.batch_reader import infer_schema
from spark_streams.connector.source.infer_schema import InferredColumn, infer, kind_of, sample
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.rows.columns import cast_values
from spark_streams.connector.wire.connection import Connection
from tools.servers.server import Server

ARROW = {
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
}


def type_of(*values: bytes | str) -> str:
    return _column(*values).kind


def _column(*values: bytes | str, **more: Any) -> InferredColumn:
    (column,) = infer([[b"f", v if isinstance(v, bytes) else v.encode()] for v in values], **more)
    return column


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["0", "-7", "9223372036854775807"], "long"),
        (["9223372036854775808"], "string"),
        (["1.5", "-2e-3", "7"], "double"),
        (["1.5", "nan", "-inf", "Infinity"], "double"),
        (["nan"], "string"),
        (["1.5", "9223372036854775807"], "string"),
        (["0.12345678901234567"], "double"),
        (["0.123456789012345678"], "string"),
        (["1e400"], "string"),
        (["true", "False"], "boolean"),
        (["true", "1"], "string"),
        (["2026-11-20", "2024-02-29"], "date"),
        (["2026-02-29"], "string"),
        (["2026-11-20 09:30", "2026-11-20T09:30:00.123456Z", "2026-11-20"], "timestamp"),
        (["2026-11-20T09:30:00.123456789"], "string"),
        (["0001-01-01T00:00:00+14:00"], "string"),
        (["02139"], "string"),
        (["+7"], "string"),
        (["1_000"], "string"),
        (["٣"], "string"),
        (["", "1"], "long"),
        ([""], "string"),
        (["1700000000000", "2026-11-20T09:30"], "timestamp"),
        (["1700000000000", "1.5"], "double"),
        (["1700000000000"], "long"),
        (["1", "2026-11-20"], "string"),
        (["x", b"\xff"], "binary"),
    ],
    ids=str,
)
def test_a_field_has_the_narrowest_type_that_reads_all_of_its_values(values: list[bytes | str], expected: str) -> None:
    assert type_of(*values) == expected


_VALUES = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.dates().map(str),
    st.datetimes().map(str),
    st.datetimes(timezones=st.timezones()).map(datetime.datetime.isoformat),
    st.booleans().map(str),
    st.text(alphabet=string.digits + "+-.eET :Z", max_size=12),
    st.sampled_from(["2026-11-20", "", "nan", "-0", "0x10", "1."]),
).map(str.encode)


@given(st.lists(_VALUES | st.binary(max_size=3), min_size=1, max_size=4))
def test_the_inferred_type_fits_every_value_of_the_sample(values: list[bytes]) -> None:
    column, bad = cast_values(pa.array(values, pa.binary()), ARROW[type_of(*values)])
    assert bad is None or not any(bad.to_pylist())
    assert column.null_count == (
        0 if pa.types.is_string(column.type) or pa.types.is_binary(column.type) else values.count(b"")
    )


@pytest.mark.parametrize(
    ("values", "kind", "comment"),
    [
        (["7"] * 49 + ["NA"], "long", "98 % of 50 values fit; not: 'NA'"),
        (["7"] * 8 + ["yes", "no"], "long", "80 % of 10 values fit; not: 'yes', 'no'"),
        (["7"] * 7 + ["yes", "no"], "string", None),
        (["1.5"] * 5 + ["7"] * 13 + ["1,234", "12 EUR"], "double", "90 % of 20 values fit; not: '1,234', '12 EUR'"),
        (["true"] * 9 + ["yes"], "boolean", "90 % of 10 values fit; not: 'yes'"),
        (["true"] * 49 + ["1"], "boolean", None),
        (["true"] * 8 + ["0", "yes"], "boolean", "90 % of 10 values fit; not: 'yes'"),
        (["true"] * 9 + ["2"], "boolean", "90 % of 10 values fit; not: '2'"),
        (["2026-11-20"] * 9 + ["2026-02-30"], "date", "90 % of 10 values fit; not: '2026-02-30'"),
        (["2026-11-20"] * 5 + ["2026-11-20T10:00"] * 5 + ["soon"], "timestamp", "90.9 % of 11 values fit; not: 'soon'"),
        (["7"] * 999 + ["a\x1b[31m\u202e", ""], "long", r"99.9 % of 1,000 values fit; not: 'a\x1b[31m\u202e'"),
        (["7"] * 20 + list("abcde"), "long", "80 % of 25 values fit; not: 'a', 'b', 'c' and 2 more"),
        (["7"] * 9 + [b"\xff"], "long", r"90 % of 10 values fit; not: '\\xff'"),
        (["7"] * 9 + ["x" * 50], "long", f"90 % of 10 values fit; not: '{'x' * 40}…'"),
        # A value that the type would read as another one, so the type is not taken.
        (["12345"] * 49 + ["02139"], "string", None),
        (["7"] * 49 + ["9223372036854775808"], "long", "98 % of 50 values fit; not: '9223372036854775808'"),
        (["1.5"] * 49 + ["0.123456789012345678"], "string", None),
        (["true"] * 49 + ["0 "], "string", None),
        (["2026-11-20T10:00:00"] * 49 + ["7"], "string", None),
        (["text"] * 49 + [b"\xff"], "binary", r"98 % of 50 values are text; not: '\\xff'"),
        (["text"] * 7 + [b"\xff"] * 3, "binary", r"70 % of 10 values are text; not: '\\xff'"),
        (["nan"] * 9 + ["text"], "string", None),
    ],
    ids=str,
)
def test_a_field_has_the_type_that_most_of_its_values_fit(
    values: list[bytes | str], kind: str, comment: str | None
) -> None:
    column = _column(*values)
    assert (column.kind, column.comment) == (kind, comment)


def test_the_share_is_a_setting() -> None:
    values = ["7"] * 6 + ["a", "b", "c", "d"]
    assert [_column(*values, share=share).kind for share in (0.5, 0.6, 0.61, 1)] == ["long", "long", "string", "string"]


def test_null_values_are_not_among_the_values() -> None:
    values = ["7", "8", "NA", "null", "-"]
    column = _column(*values, null_values=(b"NA", b"null", b"-"))
    assert (column.kind, column.values, column.comment) == ("long", 2, None)
    assert _column("NA", null_values=(b"NA",)).kind == "string"


@given(
    st.lists(st.sampled_from(["7", "8.5", "true", "2026-11-20", "2026-11-20T10:00"]), min_size=1, max_size=3),
    st.lists(_VALUES | st.binary(max_size=3), max_size=3),
    st.sampled_from([0.5, 0.8, 1]),
)
def test_each_value_is_read_without_loss_or_named(usual: list[str], others: list[bytes], share: float) -> None:
    """The values that a column's comment is about are those that the source does not read, and no others."""
    values = [*(text.encode() for text in usual * 4), *others]
    column = _column(*values, share=share)
    _read, bad = cast_values(pa.array(values, pa.binary()), ARROW[column.kind])
    unread = [value for value, is_bad in zip(values, [] if bad is None else bad.to_pylist(), strict=False) if is_bad]
    if column.kind == "binary":
        assert unread == []
        assert {kind_of(value) for value, _count in column.misfits} == {"binary"}
    else:
        assert Counter(dict(column.misfits)) == Counter(unread)
    if column.kind not in ("string", "binary"):
        assert len(unread) <= (1 - share) * column.values + 1e-9
        assert "string" not in {kind_of(value) for value in values if value and value not in unread}


@given(st.lists(st.integers(-(2**53), 2**53).map(str) | st.floats(-1e15, 1e15).map(repr), min_size=1, max_size=4))
def test_numbers_keep_their_value(values: list[str]) -> None:
    found = type_of(*values)
    if found != "string":
        column, _ = cast_values(pa.array([v.encode() for v in values], pa.binary()), ARROW[found])
        assert [float(v) for v in values] == column.cast(pa.float64(), safe=False).to_pylist()


def names_and_types(entries: list[list[bytes]], skip: Sequence[str] = ()) -> list[tuple[str, str]]:
    return [(column.name, column.kind) for column in infer(entries, skip)]


def test_columns_come_in_the_order_in_which_fields_come_up() -> None:
    entries = [[b"b", b"1", b"a", b"x"], [b"c", b"2.5", b"a", b"y", b"b", b"2"]]
    assert names_and_types(entries) == [("b", "long"), ("a", "string"), ("c", "double")]


def test_metadata_columns_are_no_fields() -> None:
    entries = [[b"_id", b"1", b"_fields", b"2", b"bad", b"3", b"id", b"4"]]
    assert names_and_types(entries, skip=["bad"]) == [("id", "long")]


def test_fields_that_cannot_be_columns_side_by_side_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever may write an entry names its fields: none of them ends a read. The name that most entries have stays."""
    entries = [[b"ID", b"x"], [b"Id", b"1", b"\xff", b"1"], [b"Id", b"2", b"n", b"9" * 5_000]]
    assert names_and_types(entries) == [("Id", "long"), ("n", "string")]
    assert "leaves out field 'ID': it differs from 'Id' in case only" in caplog.text
    assert "leaves out field b'\\xff': its name is not UTF-8" in caplog.text


# -- the sample --------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(server: Server) -> redis.Redis:
    return server.client()


def take(server: Server, limits: Limits = LIMITS, **options: str) -> list[list[bytes]]:
    checked = BatchSourceOptions.parse({"url": server.url, **options})
    with Connection(checked.address) as connection:
        return [list(fields) for fields in sample(connection, checked, limits)]


def test_the_sample_is_both_ends_of_each_stream(server: Server, client: redis.Redis) -> None:
    for stream, count in (("long", 10), ("five", 5), ("short", 2)):
        for n in range(count):
            client.xadd(stream, {stream: n})
    found = [int(fields[1]) for fields in take(server, replace(LIMITS, sample_entries=3), streams="long,five,short")]
    assert found == [0, 1, 2, 9, 8, 7, 0, 1, 2, 4, 3, 0, 1]


def test_large_entries_make_a_small_sample(server: Server, client: redis.Redis) -> None:
    for _ in range(50):
        client.xadd("s", {"f": "x" * 10_000})
    assert len(take(server, replace(LIMITS, sample_bytes=100_000), streams="s")) == 8


def test_streams_without_entries_are_an_error_that_says_to_give_a_schema(server: Server, client: redis.Redis) -> None:
    client.xgroup_create("s", "g", mkstream=True)
    with pytest.raises(SchemaError, match="no entry in s at .*. Pass a schema"):
        take(server, streams="s")
    with pytest.raises(SchemaError, match="streamsPattern=no"):
        take(server, streamsPattern="no*")


def test_entries_without_a_field_that_can_be_a_column_are_an_error(server: Server, client: redis.Redis) -> None:
    """Of rows without columns Spark would read none."""
    client.xadd("s", {"_id": "1", "dl.redriven": "1 2026-01-01T00:00:00.000000Z dead/1-0"})
    checked = BatchSourceOptions.parse({"url": server.url, "streams": "s", "inferSchema": "true"})
    with pytest.raises(SchemaError, match="but no field that can be a column. Pass a schema"):
        infer_schema(checked)


def test_the_mark_of_an_entry_that_was_sent_back_is_no_column(server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"n": 1, "dl.redriven": "1 2026-01-01T00:00:00.000000Z dead/1-0"})
    checked = BatchSourceOptions.parse({"url": server.url, "streams": "s", "inferSchema": "true"})
    assert infer_schema(checked).fieldNames() == ["n"]
