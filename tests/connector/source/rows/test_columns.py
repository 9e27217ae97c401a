"""A page of entries under a declared schema: metadata, modes, rows set aside."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StructField, StructType, VariantType

from spark_streams.connector.errors import DecodeError, SchemaError
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.wire.entry_page import EntryPage, ExactPage, FilteredPage, VectorPage

US = pa.timestamp("us", tz="UTC")

PAGE = ExactPage(
    [
        [b"1500000000000-0", [b"n", b"1", b"s", b"x"]],
        [b"1500000000001-0", [b"n", b"oops", b"s", b"y"]],
        [b"%d-0" % (2**64 - 1), [b"s", b"z"]],
    ]
)
DECLARED = pa.schema([("n", pa.int32()), ("s", pa.string()), ("_id", pa.string()), ("_timestamp", US)])


def first(page: EntryPage, rows: int) -> EntryPage:
    return FilteredPage(page, np.arange(rows))


def test_declared_columns_and_metadata_side_by_side() -> None:
    rows = Columns(DECLARED, True, "PERMISSIVE").batch(PAGE, "s").batch.to_pylist()
    assert [row["n"] for row in rows] == [1, None, None]
    assert [row["_id"] for row in rows] == ["1500000000000-0", "1500000000001-0", f"{2**64 - 1}-0"]
    # An id's milliseconds may be beyond what a timestamp holds.
    assert [row["_timestamp"] is None for row in rows] == [False, False, True]


def test_dropmalformed_drops_the_row_and_failfast_names_it() -> None:
    rows = Columns(DECLARED, True, "DROPMALFORMED").batch(PAGE, "s").batch.to_pylist()
    assert [row["s"] for row in rows] == ["x", "z"]
    with pytest.raises(
        DecodeError, match="1500000000001-0 of stream 's': field 'n' is b'oops', which does not fit INT"
    ):
        Columns(DECLARED, True, "FAILFAST").batch(PAGE, "s")
    assert Columns(DECLARED, True, "FAILFAST").batch(first(PAGE, 1), "s").batch.num_rows == 1


def test_default_columns() -> None:
    schema = pa.schema(
        [("stream", pa.string()), ("id", pa.string()), ("timestamp", US), ("fields", pa.map_(pa.string(), pa.string()))]
    )
    row = Columns(schema, False, "PERMISSIVE").batch(first(PAGE, 1), "orders").batch.to_pylist()[0]
    assert row["stream"] == "orders"
    assert row["fields"] == [("n", "1"), ("s", "x")]


def test_metadata_columns_have_their_types() -> None:
    Columns(DECLARED, True, "PERMISSIVE").check_declared()
    with pytest.raises(SchemaError, match="column '_id' is declared int32, but its type is string"):
        Columns(pa.schema([("_id", pa.int32())]), True, "PERMISSIVE").check_declared()
    for kind in (pa.int32(), pa.int64()):
        Columns(pa.schema([("_deliveries", kind)]), True, "PERMISSIVE").check_declared()
    with pytest.raises(SchemaError, match="column '_deliveries' is declared string, but its type is int32 or int64"):
        Columns(pa.schema([("_deliveries", pa.string())]), True, "PERMISSIVE").check_declared()


def test_columns_that_entries_could_never_fill_are_refused() -> None:
    with pytest.raises(SchemaError, match="column 'n' is NOT NULL"):
        Columns(pa.schema([pa.field("n", pa.int32(), nullable=False)]), True, "PERMISSIVE").check_declared()
    with pytest.raises(SchemaError, match="no metadata column '_ID'; did you mean '_id'"):
        Columns(pa.schema([("_ID", pa.string())]), True, "PERMISSIVE").check_declared()


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
        Columns(pa.schema([("tags", to)]), True, "PERMISSIVE").check_declared()


def test_a_variant_column_is_refused_by_name() -> None:
    schema = arrow_schema(StructType([StructField("v", ArrayType(VariantType()))]))
    with pytest.raises(SchemaError, match="column 'v' is declared VARIANT"):
        Columns(schema, True, "PERMISSIVE").check_declared()


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
    made.check_declared()
    return made


def test_a_page_of_several_streams_names_each_rows_stream_and_count() -> None:
    several = columns("PERMISSIVE", ("_stream", pa.string()), ("_deliveries", pa.int32()))
    assert several.wants_deliveries
    decoded = several.batch(first(BAD, 3), STREAMS[:3], pa.array([1, 2, 3], pa.int64()))
    assert decoded.batch.column("_stream").to_pylist() == ["a", "b", "c"]
    assert decoded.batch.column("_deliveries").to_pylist() == [1, 2, 3]
    assert decoded.batch.schema == several.schema
    assert decoded.dead is None
    assert not columns("PERMISSIVE").wants_deliveries


def test_a_column_names_the_columns_whose_values_do_not_fit() -> None:
    several = columns("PERMISSIVE", ("_unfit", pa.list_(pa.string())), ("_corrupt_record", pa.string()))
    decoded = several.batch(BAD, STREAMS)
    assert decoded.batch.column("_unfit").to_pylist() == [["n"], None, ["n", "d"], None]
    assert [text is None for text in decoded.batch.column("_corrupt_record").to_pylist()] == [False, True, False, True]
    decoded.batch.validate(full=True)
    assert several.batch(first(BAD, 0), STREAMS[:0]).batch.num_rows == 0
    good = ExactPage([[b"1-0", [b"n", b"1"]], [b"2-0", [b"n", b"", b"d", b"2026-11-20"]]])
    assert several.batch(good, "s").batch.column("_unfit").to_pylist() == [None, None]


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
    missing, present = read.batch(ExactPage([[b"1-0", entry], [b"2-0", other]]), "s").batch.to_pylist()
    assert (missing["n"], missing["s"], missing["b"], missing["tags"], missing["_unfit"]) == (None,) * 5
    assert dict(missing["_fields"])["n"] == "NA", "the entry itself is unchanged"
    assert (present["n"], present["s"], present["b"], present["tags"]) == (None, " NA", b"", [None])
    assert present["_unfit"] == ["n"]
    assert read.batch(ExactPage([[b"1-0", entry]]), "s").absent == [], "the fields are there"


QTY = pa.struct([("qty", pa.int32()), ("who", pa.string()), ("at", pa.date32()), ("raw", pa.binary())])
PARTS = pa.schema(
    [
        *(("payload", QTY), ("tags", pa.list_(pa.string())), ("lines", pa.list_(QTY))),
        *(("prices", pa.map_(pa.string(), pa.decimal128(6, 2))), ("flag", pa.struct([("x", pa.bool_())]))),
    ]
)


@pytest.mark.parametrize("count", [1, 70], ids=["row by row", "at once"])
@pytest.mark.parametrize(
    ("null_values", "field", "text", "value"),
    [
        ((b"NA",), "payload", '{"qty": "NA", "who": "NA", "at": "NA", "raw": "NA"}', dict.fromkeys(QTY.names)),
        ((b"NA",), "payload", '{"qty": 3, "who": " NA"}', {"qty": 3, "who": " NA", "at": None, "raw": None}),
        ((b"NA", b"-"), "tags", '["NA", "-", "a", null, "na"]', [None, None, "a", None, "na"]),
        ((b"-1",), "lines", '[{"qty": -1}, {"qty": "-1"}, {"qty": 1}]', [None, None, 1]),
        ((b"NA",), "prices", '{"NA": "NA", "b": 1.50}', [("NA", None), ("b", Decimal("1.50"))]),
        ((b"true",), "flag", '{"x": true}', {"x": None}),
        ((b"",), "tags", '["", "a"]', [None, "a"]),
        ((), "tags", '["NA", ""]', ["NA", ""]),
    ],
)
def test_null_values_reach_the_parts_of_json(
    count: int, null_values: tuple[bytes, ...], field: str, text: str, value: Any
) -> None:
    """Whether a part is read alone or in a whole page. Keys of maps are texts."""
    page = ExactPage([[b"%d-0" % n, [field.encode(), text.encode()]] for n in range(1, count + 1)])
    rows = Columns(PARTS, True, "FAILFAST", null_values=null_values).batch(page, "s").batch.to_pylist()
    for row in rows:
        seen = [line["qty"] for line in row[field]] if field == "lines" else row[field]
        assert seen == value


@pytest.mark.parametrize(
    ("field", "text", "member"),
    [
        ("payload", '{"qty": "NA"}', "payload.qty is 'NA'"),
        ("payload", '{"qty": 3.0}', "payload.qty is '3.0'"),
        ("payload", '{"qty": 3000000000}', "payload.qty is '3000000000'"),
        ("payload", '{"qty": {"a": 1}}', "payload.qty is an object"),
        ("payload", '{"qty": 1, "at": "2026-02-30"}', "payload.at is '2026-02-30'"),
        ("payload", '{"raw": "*"}', "payload.raw is '*'"),
        ("payload", '{"qty": "%s"}' % ("9" * 90), f"payload.qty is '{'9' * 80}'…"),
        ("payload", '{"qty": "\\u001b[31m"}', r"payload.qty is '\x1b[31m'"),
        ("payload", "[1]", "payload is an array"),
        ("payload", "3", "payload is '3'"),
        ("payload", '{"qty": 3', "it is not JSON"),
        ("lines", '[{"qty": 1}, {"qty": "x"}, {"qty": "y"}]', "lines[].qty is 'x'"),
        ("tags", '{"a": 1}', "tags is an object"),
        ("prices", '{"a": 1, "b": 1.555}', "prices[] is '1.555'"),
        ("flag", '{"x": "maybe"}', "flag.x is 'maybe'"),
    ],
)
@pytest.mark.parametrize("count", [1, 70])
def test_a_json_value_that_does_not_fit_names_its_member(count: int, field: str, text: str, member: str) -> None:
    page = ExactPage([[b"%d-0" % n, [field.encode(), text.encode()]] for n in range(1, count + 1)])
    dead = Columns(PARTS, True, "DEADLETTER").batch(page, "s").dead
    assert dead is not None
    assert len(dead.reasons) == count
    for reason in dead.reasons:
        assert reason.endswith(f" ({member})")


def test_each_of_many_json_values_names_its_own_member() -> None:
    """They are read again at once, beside a value that is no JSON, one that is too long for it, and good ones."""
    texts = [f'{{"qty": "a{n}"}}' if n % 3 else '{"qty": 1}' for n in range(100)]
    texts += ['{"at": "x"}', "{", '{"qty": "%s"}' % ("z" * (1 << 20))]
    page = ExactPage([[b"%d-0" % n, [b"payload", text.encode()]] for n, text in enumerate(texts, 1)])
    dead = Columns(PARTS, True, "DEADLETTER").batch(page, "s").dead
    assert dead is not None
    named = [reason.rpartition(">")[2] for reason in dead.reasons]
    assert named == [
        *[f" (payload.qty is 'a{n}')" for n in range(100) if n % 3],
        *(" (payload.at is 'x')", " (it is not JSON)", ""),
    ]


@pytest.mark.parametrize("text", ["3.0", "3e0", "3.5", "-0.0", "1e2", "NaN", "3", "-3", "2147483648"])
def test_a_number_for_an_integer_has_one_rule_in_a_field_and_in_json(text: str) -> None:
    """`3.0` is no INT in either, because a producer that rounds would go unseen."""
    schema = pa.schema([("n", pa.int32()), ("j", pa.struct([("n", pa.int32())])), ("_unfit", pa.list_(pa.string()))])
    page = ExactPage([[b"1-0", [b"n", text.encode(), b"j", b'{"n": %s}' % text.encode()]]])
    (row,) = Columns(schema, True, "PERMISSIVE").batch(page, "s").batch.to_pylist()
    assert (row["j"] or {"n": None})["n"] == row["n"]
    assert row["_unfit"] == (None if row["n"] is not None else ["n", "j"])
    assert (row["n"] is None) == (text not in ("3", "-3"))


def test_mode_deadletter_sets_rows_aside_untouched_with_a_reason() -> None:
    decoded = columns("DEADLETTER").batch(BAD, "s")
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
    assert columns("DEADLETTER").batch(first(PAGE, 1), "s").dead is None
    dead = columns("DEADLETTER").batch(first(BAD, 2), "s").dead
    assert dead is not None
    assert dead.rows.tolist() == [0]


def test_the_corrupt_record_column_holds_the_whole_entry_as_json() -> None:
    found = columns("PERMISSIVE", ("_corrupt_record", pa.string())).batch(BAD, "s").batch
    texts = found.column("_corrupt_record").to_pylist()
    assert texts[1] is texts[3] is None
    assert json.loads(texts[0]) == {"n": "oops", "s": "x"}
    assert json.loads(texts[2], object_pairs_hook=list) == [
        ("n", "3.5"), ("d", "yesterday"), ("\ufffd", '"quoted"'), ("n", "x" * 100)
    ]  # fmt: skip
    assert found.column("n").to_pylist() == [None, 2, None, None]
    good = columns("PERMISSIVE", ("_corrupt_record", pa.string())).batch(first(PAGE, 1), "s").batch
    assert good.column("_corrupt_record").to_pylist() == [None]


def test_the_corrupt_record_column_may_have_another_name() -> None:
    found = columns("PERMISSIVE", ("broken", pa.string()), corrupt="broken").batch(first(BAD, 1), "s").batch
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
        Columns(pa.schema([("d", pa.date32())]), True, "FAILFAST").batch(BAD, STREAMS)


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
        rows = Columns(schema, True, "FAILFAST").batch(page, "s").batch.to_pylist()
        maps = Columns(as_map, True, "FAILFAST").batch(page, "s").batch.to_pylist()
        for fields, row, other in zip(entries, rows, maps, strict=True):
            names, values = fields[::2], fields[1::2]
            last = {name.decode(): value.decode() for name, value in zip(names, values, strict=True)}
            number = json.loads(last["j"])["x"]
            assert (row["a"], row["j"], dict(other["j"])) == (last["a"], {"x": number}, {"x": number})
            assert len(row["_fields"]) == len(last)
            assert dict(row["_fields"]) == last
            assert len(other["j"]) == 1
            assert other["_fields"] == list(zip(names, values, strict=True))
