"""What filters leave of a batch, without a server and without a Spark that runs."""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.source.batch_plan import Narrowing, narrowing_of, part_of
from spark_streams.connector.spark.data_source import HAS_FILTERS
from tests.connector.source.held_ids import IDS, head_of, inside

if not HAS_FILTERS:
    pytest.skip("this Spark has no filters for Python sources", allow_module_level=True)

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

COLUMNS = {"_stream": "stream", "_id": "id", "_timestamp": "timestamp"}


def moment(micros: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=micros)


_TEXTS = st.one_of(IDS.map(str), st.sampled_from(["5", "12", "1000", "12-", "05-1", "", "x", "9-9-9", "0-1"]))
_MOMENTS = st.integers(-3_000, 2_000_000).map(moment)
_ON_ID: list[Any] = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
FILTERS = st.one_of(
    st.builds(lambda kind, v: kind(("_id",), v), st.sampled_from([*_ON_ID, StringStartsWith]), _TEXTS),
    st.builds(lambda kind, v: kind(("_timestamp",), v), st.sampled_from(_ON_ID), _MOMENTS),
    st.builds(lambda v: In(("_id",), tuple(v)), st.lists(_TEXTS, max_size=3)),
    st.builds(lambda v: In(("_timestamp",), tuple(v)), st.lists(_MOMENTS, min_size=1, max_size=3)),
    st.builds(lambda v: Not(EqualTo(("_id",), v)), _TEXTS),
    st.builds(lambda v: EqualTo(("_stream",), v), st.sampled_from(["s", "t"])),
)


def keeps(one: Filter, entry: StreamId) -> bool:
    """What Spark makes of a filter, on the columns as they are."""
    if isinstance(one, Not):
        return not keeps(one.child, entry)
    column, value = one.attribute[0], one.value  # type: ignore[attr-defined]
    mine: Any = {"_id": str(entry), "_stream": "s"}.get(column)
    if column == "_timestamp":
        # As the column holds it: numbers compare like moments, and reach further than Python's calendar.
        mine = entry.ms * 1000
        epoch = moment(0)
        as_number = lambda at: (at - epoch) // datetime.timedelta(microseconds=1)  # noqa: E731
        value = [as_number(v) for v in value] if isinstance(one, In) else as_number(value)
    match one:
        case EqualTo() | EqualNullSafe():
            return bool(mine == value)
        case In():
            return mine in value
        case GreaterThan():
            return bool(mine > value)
        case GreaterThanOrEqual():
            return bool(mine >= value)
        case LessThan():
            return bool(mine < value)
        case LessThanOrEqual():
            return bool(mine <= value)
        case StringStartsWith():
            return str(mine).startswith(value)
    raise AssertionError(one)


@given(st.sets(IDS, max_size=30), st.lists(FILTERS, max_size=3))
def test_no_entry_that_a_filter_keeps_is_narrowed_away(ids: set[StreamId], filters: list[Filter]) -> None:
    narrowing = narrowing_of(filters, COLUMNS)
    held = sorted(ids)
    read = [
        one
        for stream in narrowing.among(["s"])
        for one in inside(part_of(stream, head_of(held), MIN_ID, MAX_ID, narrowing), held)
    ]
    kept = [one for one in held if all(keeps(one_filter, one) for one_filter in filters)]
    assert set(kept) <= set(read)


HELD = [StreamId(1_700_000_000_000 + n, 0) for n in range(0, 1000, 10)]


def read_under(*filters: Filter, ids: list[StreamId] = HELD) -> list[int]:
    """The milliseconds above 1.7e12 of the entries that are read under these filters."""
    run = part_of("s", head_of(ids), MIN_ID, MAX_ID, narrowing_of(filters, COLUMNS))
    return [one.ms - 1_700_000_000_000 for one in inside(run, ids)]


@pytest.mark.parametrize(
    ("one", "least", "most"),
    [
        (GreaterThanOrEqual(("_timestamp",), moment(1_700_000_000_500_000)), 500, 990),
        (GreaterThan(("_timestamp",), moment(1_700_000_000_500_000)), 510, 990),
        (GreaterThan(("_timestamp",), moment(1_700_000_000_499_999)), 500, 990),
        (GreaterThanOrEqual(("_timestamp",), moment(1_700_000_000_500_001)), 510, 990),
        (LessThan(("_timestamp",), moment(1_700_000_000_500_000)), 0, 490),
        (LessThan(("_timestamp",), moment(1_700_000_000_500_001)), 0, 500),
        (LessThanOrEqual(("_timestamp",), moment(1_700_000_000_500_000)), 0, 500),
        (EqualTo(("_timestamp",), moment(1_700_000_000_500_000)), 500, 500),
        (GreaterThanOrEqual(("_id",), "1700000000500"), 500, 990),
        (LessThan(("_id",), "1700000000500-7"), 0, 500),
        (EqualTo(("_id",), "1700000000500-0"), 500, 500),
    ],
    ids=str,
)
def test_a_filter_on_time_or_id_narrows_to_its_range(one: Filter, least: int, most: int) -> None:
    assert read_under(one) == list(range(least, most + 1, 10))


def test_an_instant_keeps_its_meaning_whatever_the_zone_it_is_written_in() -> None:
    """The hour that daylight saving repeats: 01:30 in New York is two instants, fold tells which."""
    zone = zoneinfo.ZoneInfo("America/New_York")
    for fold, hour in ((0, 5), (1, 6)):
        local = datetime.datetime(2023, 11, 5, 1, 30, fold=fold, tzinfo=zone)
        narrowing = narrowing_of([GreaterThanOrEqual(("_timestamp",), local)], COLUMNS)
        same = datetime.datetime(2023, 11, 5, hour, 30, tzinfo=datetime.UTC)
        assert narrowing.after.next().ms == int(same.timestamp() * 1000)


def test_texts_of_ids_with_fewer_digits_are_ordered_differently_and_narrow_nothing() -> None:
    """'9-0' > '10-0' as texts: Spark must see them all."""
    ids = [StreamId(n, 0) for n in range(1, 30)]
    run = part_of("s", head_of(ids), MIN_ID, MAX_ID, narrowing_of([GreaterThan(("_id",), "15-0")], COLUMNS))
    assert inside(run, ids) == ids


def test_ids_are_read_one_by_one_and_what_is_no_id_finds_nothing() -> None:
    assert read_under(In(("_id",), ("1700000000500-0", "1700000000020-0", "1-1"))) == [20, 500]
    assert read_under(EqualTo(("_id",), "1700000000500")) == []
    assert read_under(In(("_id",), ())) == []


def test_filters_on_fields_and_on_fields_of_a_struct_narrow_nothing() -> None:
    assert narrowing_of([EqualTo(("id",), "5-0"), EqualTo(("_id", "x"), "5-0"), IsNotNull(("_id",))], COLUMNS) == (
        Narrowing()
    )


def test_streams_are_left_out_by_name() -> None:
    filters = [In(("_stream",), ("a", "c", None)), EqualTo(("_stream",), "c")]
    assert narrowing_of(filters, COLUMNS).among(["a", "b", "c"]) == ("c",)
