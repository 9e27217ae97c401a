"""A page of entries under a declared schema: metadata, modes, rows set aside."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StructField, StructType, VariantType

from spark_streams.errors import DecodeError, SchemaError
from spark_streams.source.rows.columns import Columns
from spark_streams.spark.arrow_schema import arrow_schema
from spark_streams.wire.entries.decode import ExactPage
from spark_streams.wire.entries.vector_page import VectorPage

US = pa.timestamp("us", tz="UTC")

PAGE = ExactPage(
    [
        [b"1500000000000-0", [b"n", b"1", b"s", b"x"]],
        [b"1500000000001-0", [b"n", b"oops", b"s", b"y"]],
        [b"%d-0" % (2**64 - 1), [b"s", b"z"]],
    ]
)
DECLARED = pa.schema([("n", pa.int32()), ("s", pa.string()), ("_id", pa.string()), ("_timestamp", US)])


def test_declared_columns_and_metadata_side_by_side() -> None:
    rows = Columns(DECLARED, True, "PERMISSIVE").batch(PAGE, 3, "s").batch.to_pylist()
    assert [row["n"] for row in rows] == [1, None, None]
    assert [row["_id"] for row in rows] == ["1500000000000-0", "1500000000001-0", f"{2**64 - 1}-0"]
    # An id's milliseconds may be beyond what a timestamp holds.
    assert [row["_timestamp"] is None for row in rows] == [False, False, True]


def test_dropmalformed_drops_the_row_and_failfast_names_it() -> None:
    rows = Columns(DECLARED, True, "DROPMALFORMED").batch(PAGE, 3, "s").batch.to_pylist()
    assert [row["s"] for row in rows] == ["x", "z"]
    with pytest.raises(
        DecodeError, match="1500000000001-0 of stream 's': field 'n' is b'oops', which does not fit INT"
    ):
        Columns(DECLARED, True, "FAILFAST").batch(PAGE, 3, "s")
    # A row beyond the run is none of our business.
    assert Columns(DECLARED, True, "FAILFAST").batch(PAGE, 1, "s").batch.num_rows == 1


def test_default_columns() -> None:
    schema = pa.schema(
        [("stream", pa.string()), ("id", pa.string()), ("timestamp", US), ("fields", pa.map_(pa.string(), pa.string()))]
    )
    row = Columns(schema, False, "PERMISSIVE").batch(PAGE, 1, "orders").batch.to_pylist()[0]
    assert row["stream"] == "orders"
    assert row["fields"] == [("n", "1"), ("s", "x")]


def test_metadata_columns_have_their_types() -> None:
    Columns(DECLARED, True, "PERMISSIVE").check()
    with pytest.raises(SchemaError, match="column '_id' is declared int32, but its type is string"):
        Columns(pa.schema([("_id", pa.int32())]), True, "PERMISSIVE").check()
    for kind in (pa.int32(), pa.int64()):
        Columns(pa.schema([("_deliveries", kind)]), True, "PERMISSIVE").check()
    with pytest.raises(SchemaError, match="column '_deliveries' is declared string, but its type is int32 or int64"):
        Columns(pa.schema([("_deliveries", pa.string())]), True, "PERMISSIVE").check()


def test_columns_that_entries_could_never_fill_are_refused() -> None:
    with pytest.raises(SchemaError, match="column 'n' is NOT NULL"):
        Columns(pa.schema([pa.field("n", pa.int32(), nullable=False)]), True, "PERMISSIVE").check()
    with pytest.raises(SchemaError, match="no metadata column '_ID'; did you mean '_id'"):
        Columns(pa.schema([("_ID", pa.string())]), True, "PERMISSIVE").check()


@pytest.mark.parametrize(
    ("to", "wrong"),
    [
        (pa.duration("us"), "duration"),
        (pa.month_day_nano_interval(), "month_day_nano_interval"),
        (pa.null(), "null"),
        (pa.struct([]), "struct<>"),
        (pa.list_(pa.duration("us")), "duration"),
        (pa.map_(pa.list_(pa.int32()), pa.int32()), "a map whose keys are not scalars"),
        (pa.struct([pa.field("v", pa.binary()), pa.field("m", pa.binary(), metadata={"variant": "true"})]), "VARIANT"),
        (pa.struct([pa.field("v", pa.binary(), metadata={"geometry": "true", "srid": "4326"})]), "GEOMETRY"),
    ],
)
def test_types_that_no_field_can_hold_are_refused_by_name(to: pa.DataType, wrong: str) -> None:
    with pytest.raises(SchemaError, match=f"column 'tags' is declared .*{wrong}.*: fields are read as string"):
        Columns(pa.schema([("tags", to)]), True, "PERMISSIVE").check()


def test_a_variant_column_is_refused_by_name() -> None:
    schema = arrow_schema(StructType([StructField("v", ArrayType(VariantType()))]))
    with pytest.raises(SchemaError, match="column 'v' is declared VARIANT"):
        Columns(schema, True, "PERMISSIVE").check()


BAD = ExactPage(
    [
        [b"1-0", [b"n", b"oops", b"s", b"x"]],
        [b"2-0", [b"n", b"2", b"s", b"y"]],
        [b"3-0", [b"n", b"3.5", b"d", b"yesterday", b"\xff", b'"quoted"', b"n", b"x" * 100]],
        [b"4-0", [b"other", b"field"]],
    ]
)
STREAMS = pa.array(["a", "b", "c", "d"])


def columns(mode: str, *more: tuple[str, pa.DataType], **options: Any) -> Columns:
    made = Columns(
        pa.schema([("n", pa.int32()), ("d", pa.date32()), ("_id", pa.string()), *more]), True, mode, **options
    )
    made.check()
    return made


def test_a_page_of_several_streams_names_each_rows_stream_and_count() -> None:
    several = columns("PERMISSIVE", ("_stream", pa.string()), ("_deliveries", pa.int32()))
    assert several.wants_deliveries
    decoded = several.batch(BAD, 3, STREAMS, pa.array([1, 2, 3, 4], pa.int64()))
    assert decoded.batch.column("_stream").to_pylist() == ["a", "b", "c"]
    assert decoded.batch.column("_deliveries").to_pylist() == [1, 2, 3]
    assert decoded.batch.schema == several.schema
    assert decoded.dead is None
    assert not columns("PERMISSIVE").wants_deliveries


def test_a_column_names_the_columns_whose_values_do_not_fit() -> None:
    several = columns("PERMISSIVE", ("_unfit", pa.list_(pa.string())), ("_corrupt_record", pa.string()))
    decoded = several.batch(BAD, 4, STREAMS)
    assert decoded.batch.column("_unfit").to_pylist() == [["n"], None, ["n", "d"], None]
    assert [text is None for text in decoded.batch.column("_corrupt_record").to_pylist()] == [False, True, False, True]
    decoded.batch.validate(full=True)
    assert several.batch(BAD, 0, STREAMS).batch.num_rows == 0
    good = ExactPage([[b"1-0", [b"n", b"1"]], [b"2-0", [b"n", b"", b"d", b"2026-11-20"]]])
    assert several.batch(good, 2, "s").batch.column("_unfit").to_pylist() == [None, None]


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "FAILFAST", "DEADLETTER"])
def test_the_column_of_unfit_columns_is_refused_if_a_mode_leaves_it_empty(mode: str) -> None:
    with pytest.raises(SchemaError, match=f"column '_unfit' is only filled in mode PERMISSIVE, but mode is {mode}"):
        columns(mode, ("_unfit", pa.list_(pa.string())))


def test_null_values_are_null_in_every_column_and_fit() -> None:
    schema = pa.schema(
        [
            *(("n", pa.int32()), ("s", pa.string()), ("b", pa.binary()), ("tags", pa.list_(pa.string()))),
            *(("_fields", pa.map_(pa.string(), pa.string())), ("_unfit", pa.list_(pa.string()))),
        ]
    )
    entry = [b"n", b"NA", b"s", b"NA", b"b", b"NA", b"tags", b"NA"]
    other = [b"n", b"na", b"s", b" NA", b"b", b"", b"tags", b'["NA"]']
    read = Columns(schema, True, "PERMISSIVE", null_values=(b"NA",))
    missing, present = read.batch(ExactPage([[b"1-0", entry], [b"2-0", other]]), 2, "s").batch.to_pylist()
    assert (missing["n"], missing["s"], missing["b"], missing["tags"], missing["_unfit"]) == (None,) * 5
    assert dict(missing["_fields"])["n"] == "NA", "the entry itself is unchanged"
    assert (present["n"], present["s"], present["b"], present["tags"]) == (None, " NA", b"", ["NA"])
    assert present["_unfit"] == ["n"]
    assert read.batch(ExactPage([[b"1-0", entry]]), 1, "s").absent == [], "the fields are there"


def test_mode_deadletter_sets_rows_aside_untouched_with_a_reason() -> None:
    decoded = columns("DEADLETTER").batch(BAD, 4, "s")
    assert decoded.batch.column("_id").to_pylist() == ["2-0", "4-0"]
    dead = decoded.dead
    assert dead is not None
    assert dead.rows.tolist() == [0, 2]
    assert dead.reasons[0] == "field 'n' is b'oops', which does not fit INT"
    assert dead.reasons[1] == (
        f"field 'n' is {b'x' * 80!r}…, which does not fit INT; field 'd' is b'yesterday', which does not fit DATE"
    )
    ids, offsets, names, values = dead.entries()
    assert ids.to_pylist() == [b"1-0", b"3-0"]
    assert offsets.to_pylist() == [0, 2, 6]
    assert names.to_pylist() == [b"n", b"s", b"n", b"d", b"\xff", b"n"]
    assert values.to_pylist() == [b"oops", b"x", b"3.5", b"yesterday", b'"quoted"', b"x" * 100]


def test_mode_deadletter_without_a_bad_value_sets_nothing_aside() -> None:
    assert columns("DEADLETTER").batch(PAGE, 1, "s").dead is None
    # Only the first two rows are asked for: the third is none of our business.
    dead = columns("DEADLETTER").batch(BAD, 2, "s").dead
    assert dead is not None
    assert dead.rows.tolist() == [0]


def test_the_corrupt_record_column_holds_the_whole_entry_as_json() -> None:
    found = columns("PERMISSIVE", ("_corrupt_record", pa.string())).batch(BAD, 4, "s").batch
    texts = found.column("_corrupt_record").to_pylist()
    assert texts[1] is texts[3] is None
    assert json.loads(texts[0]) == {"n": "oops", "s": "x"}
    assert json.loads(texts[2], object_pairs_hook=list) == [
        ("n", "3.5"), ("d", "yesterday"), ("\ufffd", '"quoted"'), ("n", "x" * 100)
    ]  # fmt: skip
    assert found.column("n").to_pylist() == [None, 2, None, None]
    good = columns("PERMISSIVE", ("_corrupt_record", pa.string())).batch(PAGE, 1, "s").batch
    assert good.column("_corrupt_record").to_pylist() == [None]


def test_the_corrupt_record_column_may_have_another_name() -> None:
    found = columns("PERMISSIVE", ("broken", pa.string()), corrupt="broken").batch(BAD, 1, "s").batch
    assert json.loads(found.column("broken")[0].as_py()) == {"n": "oops", "s": "x"}


def test_a_corrupt_record_column_that_cannot_be_filled_is_refused() -> None:
    with pytest.raises(SchemaError, match="'_corrupt_record' is declared int32, but holds the text of"):
        columns("PERMISSIVE", ("_corrupt_record", pa.int32()))
    with pytest.raises(SchemaError, match="'_corrupt_record' is only filled in mode PERMISSIVE, but mode is FAILFAST"):
        columns("FAILFAST", ("_corrupt_record", pa.string()))
    with pytest.raises(SchemaError, match="'_id' cannot hold corrupt records"):
        columns("PERMISSIVE", corrupt="_id")


def test_failfast_names_the_first_row_of_its_own_stream() -> None:
    with pytest.raises(
        DecodeError, match="entry 3-0 of stream 'c': field 'd' is b'yesterday', which does not fit DATE"
    ):
        Columns(pa.schema([("d", pa.date32())]), True, "FAILFAST").batch(BAD, 4, STREAMS)


TWICE = [
    [b"a", b"1", b"b", b"x", b"a", b"2", b"j", b'{"x":1,"x":2}'],
    [b"j", b'{"x":5}', b"a", b"3"],
    [b"a", b"4", b"a", b"", b"a", b"6", b"j", b'{"x":"no","x":6}'],
]


def resp(entries: list[list[bytes]]) -> bytes:
    """The reply to XRANGE."""
    parts = [b"*%d\r\n" % len(entries)]
    for place, fields in enumerate(entries):
        words = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in fields)
        entry = b"%d-0" % (1000 + place)
        parts.append(b"*2\r\n$%d\r\n%b\r\n*%d\r\n%b" % (len(entry), entry, len(fields), words))
    return b"".join(parts)


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("entries", [TWICE, TWICE[:1], TWICE[1:2]], ids=["mixed", "twice", "once"])
def test_of_a_name_that_occurs_twice_the_last_value_counts(entries: list[list[bytes]], times: int) -> None:
    """In a column, a struct, a map and _fields as strings; _fields as bytes is the entry itself, with both."""
    entries = entries * times
    texts, raw = pa.map_(pa.string(), pa.string()), pa.map_(pa.binary(), pa.binary())
    schema = pa.schema([("a", pa.string()), ("j", pa.struct([("x", pa.int32())])), ("_fields", texts)])
    as_map = pa.schema([("j", pa.map_(pa.string(), pa.int32())), ("_fields", raw)])
    exact = ExactPage([[b"%d-0" % (1000 + place), fields] for place, fields in enumerate(entries)])
    for page in (exact, VectorPage(resp(entries))):
        assert page.count == len(entries)
        rows = Columns(schema, True, "FAILFAST").batch(page, page.count, "s").batch.to_pylist()
        maps = Columns(as_map, True, "FAILFAST").batch(page, page.count, "s").batch.to_pylist()
        for fields, row, other in zip(entries, rows, maps, strict=True):
            names, values = fields[::2], fields[1::2]
            last = {name.decode(): value.decode() for name, value in zip(names, values, strict=True)}
            number = json.loads(last["j"])["x"]
            assert (row["a"], row["j"], dict(other["j"])) == (last["a"], {"x": number}, {"x": number})
            assert len(row["_fields"]) == len(last)
            assert dict(row["_fields"]) == last
            assert len(other["j"]) == 1
            assert other["_fields"] == list(zip(names, values, strict=True))
