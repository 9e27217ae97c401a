"""What a task finds out about columns while it decodes: values that do not fit, and columns without a field."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from spark_streams.connector.source.rows.column_report import BadValues, ColumnReport, ColumnTally
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.wire.entry_page import EntryPage, ExactPage

PAIR = pa.struct([("a", pa.int32()), ("b", pa.date32())])
DECLARED = pa.schema([("n", pa.int32()), ("pair", PAIR), ("s", pa.string()), ("_id", pa.string())])


def page(*entries: dict[str, str], first: int = 1) -> ExactPage:
    """Entries first-0, first+1-0 …"""
    return ExactPage(
        [
            [b"%d-0" % (first + at), [word.encode() for pair in fields.items() for word in pair]]
            for at, fields in enumerate(entries)
        ]
    )


def reported(
    *pages: EntryPage, schema: pa.Schema = DECLARED, mode: str = "PERMISSIVE", streams: Any = "orders", **more: Any
) -> ColumnReport | None:
    """What a task that reads these pages tells; None where it tells nothing."""
    columns = Columns(schema, True, mode, **more)
    tally = ColumnTally(columns)
    told: list[tuple[ColumnReport, bool]] = []
    with tally.reporting(lambda report, whole: told.append((report, whole))):
        for one in pages:
            tally.batch(one, streams)
    assert all(whole for _, whole in told)
    return told[0][0] if told else None


FINE = {"n": "1", "pair": '{"a": 1}', "s": "x"}


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "DEADLETTER"])
def test_bad_values_are_counted_whatever_becomes_of_them(mode: str) -> None:
    """A part of a nested column that does not fit counts as the column, and once. Its value is shown by its form."""
    wrong = {**FINE, "pair": '{"a": "x", "b": "y"}'}
    told = reported(page(FINE, {**FINE, "n": "one"}), page({**wrong, "n": "3.5"}, wrong, first=3), mode=mode)
    assert told is not None
    assert told.bad == {
        "n": BadValues("INT", {"orders": 2}, "orders", "2-0", "b'xxx'"),
        "pair": BadValues("struct<a:int,b:date>", {"orders": 2}, "orders", "3-0", 'b\'{"x": "x", "x": "x"}\''),
    }
    assert (told.handling, told.entries, told.absent, told.names) == (mode, 4, (), ())


def test_values_of_a_page_of_many_streams_count_for_their_own() -> None:
    streams = pa.array(["a", "b", "a", "c"])
    told = reported(page({**FINE, "n": "x"}, FINE, {**FINE, "n": "y"}, {**FINE, "n": "z"}), streams=streams)
    assert told is not None
    assert told.bad["n"].counts == {"a": 2, "c": 1}
    assert (told.bad["n"].count, told.bad["n"].stream, told.bad["n"].entry) == (3, "a", "1-0")


@pytest.mark.parametrize(
    ("to", "called"),
    [
        (pa.int64(), "BIGINT"),
        (pa.decimal128(5, 2), "DECIMAL(5,2)"),
        (pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
        (pa.timestamp("us"), "TIMESTAMP_NTZ"),
        pytest.param(
            *(pa.time64("ns"), "TIME(6)"),
            marks=pytest.mark.skipif(not hasattr(types, "TimeType"), reason="this Spark has no TIME"),
        ),
        (pa.list_(pa.int32()), "array<int>"),
    ],
)
def test_types_are_called_as_a_schema_declares_them(to: pa.DataType, called: str) -> None:
    told = reported(page({"c": "?"}), schema=pa.schema([("c", to)]))
    assert told is not None
    assert told.bad["c"].type == called


def test_there_is_nothing_to_tell_where_all_fits_and_each_column_is_somewhere() -> None:
    """A column that some entries have and others have not is as usual; so is a JSON null; `_id` is no field."""
    assert reported(page({"n": "1"}, {"other": "x"}), page({"s": "x", "pair": "null"}, first=3)) is None
    assert reported() is None, "no entry, so nothing is known"


def test_columns_that_are_fields_of_no_entry_are_named_beside_what_there_is() -> None:
    schema = pa.schema([("ammount", pa.int32()), ("b", pa.int32()), ("_corrupt_record", pa.string())])
    told = reported(page({"old": "1"}), page({"b": "1", "amount": "2"}, {"a\n": "x" * 99, "b": "2"}), schema=schema)
    assert told == ColumnReport("PERMISSIVE", 3, {}, ("ammount",), ("b", "amount", "a\\n"))
    told = reported(page({"b": "x"}), schema=schema.append(pa.field("text", pa.string())), corrupt="text")
    assert told is not None
    assert told.absent == ("ammount", "_corrupt_record"), "the corrupt record's column has another name"


def test_default_columns_are_no_fields() -> None:
    schema = pa.schema([("stream", pa.string()), ("fields", pa.map_(pa.string(), pa.string()))])
    columns = Columns(schema, False, "PERMISSIVE")
    tally = ColumnTally(columns)
    one = page({"a": "1"})
    with tally.reporting(lambda *_: pytest.fail("there is nothing to tell")):
        tally.batch(one, "s")


def test_a_task_that_is_ended_early_tells_what_it_has_seen_and_one_that_fails_nothing() -> None:
    columns = Columns(DECLARED, True, "PERMISSIVE")
    told: list[tuple[int, bool]] = []

    def task() -> Generator[None]:
        tally, one = ColumnTally(columns), page({**FINE, "n": "x"})
        with tally.reporting(lambda report, whole: told.append((report.bad["n"].count, whole))):
            tally.batch(one, "s")
            yield

    failing = task()
    next(failing)
    with pytest.raises(ValueError, match="lost"):
        failing.throw(ValueError("lost"))
    assert not told
    ended = task()
    next(ended)
    ended.close()
    assert told == [(1, False)]


def test_a_report_is_read_back() -> None:
    told = reported(page({"n": "x", "pair": "{}", "é": "ü"}))
    assert told is not None
    assert told.absent == ("s",)
    assert ColumnReport.from_json(told.to_json()) == told


def bad(entry: str, value: str, **counts: int) -> BadValues:
    return BadValues("INT", counts, next(iter(counts)), entry, value)


def test_the_reports_of_a_batch_are_one() -> None:
    """The first value is the one with the lowest id; absent is what every task has called so, and one that found
    nothing to tell sent no report."""
    some = [
        ColumnReport("PERMISSIVE", 10, {"n": bad("10-0", "b'x'", s=2, t=1)}, ("a", "b"), ("n", "c"), tasks=2),
        ColumnReport("PERMISSIVE", 5, {"n": bad("9-1", "b'y'", t=4), "m": bad("1-0", "b'z'", s=1)}, ("b",), ("d",), 2),
    ]
    batch = ColumnReport.of_batch(some)
    assert batch.bad == {"n": BadValues("INT", {"s": 2, "t": 5}, "t", "9-1", "b'y'"), "m": some[1].bad["m"]}
    assert (batch.entries, batch.absent, batch.names) == (15, ("b",), ("n", "c", "d"))
    assert ColumnReport.of_batch(some[:1]).absent == ()
    assert not ColumnReport.of_batch([])
