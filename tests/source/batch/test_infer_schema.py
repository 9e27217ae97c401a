"""Schema inference: what a field's values say, and what sample they are taken from."""

from __future__ import annotations

import datetime
import string
from dataclasses import replace

import pyarrow as pa
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.errors import SchemaError
from spark_streams.options.source_options import BatchSourceOptions
from spark_streams.source.batch.infer_schema import infer
from spark_streams.source.batch.sample import sample
from spark_streams.source.batch_reader import infer_schema
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.rows.cast import cast_values
from spark_streams.wire.connection.connection import Connection
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
    ((_name, found),) = infer([[b"f", v if isinstance(v, bytes) else v.encode()] for v in values])
    return found


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
        (["", "1"], "string"),
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
    assert column.null_count == 0


@given(st.lists(st.integers(-(2**53), 2**53).map(str) | st.floats(-1e15, 1e15).map(repr), min_size=1, max_size=4))
def test_numbers_keep_their_value(values: list[str]) -> None:
    found = type_of(*values)
    if found != "string":
        column, _ = cast_values(pa.array([v.encode() for v in values], pa.binary()), ARROW[found])
        assert [float(v) for v in values] == column.cast(pa.float64(), safe=False).to_pylist()


def test_columns_come_in_the_order_in_which_fields_come_up() -> None:
    entries = [[b"b", b"1", b"a", b"x"], [b"c", b"2.5", b"a", b"y", b"b", b"2"]]
    assert infer(entries) == [("b", "long"), ("a", "string"), ("c", "double")]


def test_metadata_columns_are_no_fields() -> None:
    assert infer([[b"_id", b"1", b"_fields", b"2", b"bad", b"3", b"id", b"4"]], skip=["bad"]) == [("id", "long")]


def test_fields_that_cannot_be_columns_side_by_side_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever may write an entry names its fields: none of them ends a read. The name that most entries have stays."""
    entries = [[b"ID", b"x"], [b"Id", b"1", b"\xff", b"1"], [b"Id", b"2", b"n", b"9" * 5_000]]
    assert infer(entries) == [("Id", "long"), ("n", "string")]
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
