"""What a batch reads: bounds, filters and cuts, without a server and without Spark."""

from __future__ import annotations

import bisect
import datetime
import itertools
import zoneinfo
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from spark_streams.ids import MAX_ID, MIN_ID, U64_MAX, StreamId
from spark_streams.source.batch.pushdown import narrowing_of
from spark_streams.source.batch.split_points import Look, cut, first_places, further_places
from spark_streams.source.batch.stream_bounds import Head, Narrowing, run_of
from spark_streams.source.entry_range import EntryRange
from spark_streams.wire.entries.pending_page import texts_of

IDS = st.builds(StreamId, st.integers(0, 1500) | st.integers(0, U64_MAX), st.integers(0, 12)).filter(
    lambda one: one > MIN_ID
)
COLUMNS = {"_stream": "stream", "_id": "id", "_timestamp": "timestamp"}


def head_of(ids: list[StreamId]) -> Head:
    return Head(min(ids), max(ids), len(ids), 20) if ids else Head(None, None, 0)


def inside(run: EntryRange | None, ids: list[StreamId]) -> list[StreamId]:
    """Which of the stream's ids are read."""
    if run is None:
        return []
    if run.ids:
        ids = sorted({StreamId.parse(one) for one in texts_of(run.ids).to_pylist()} & set(ids))
    return ids[bisect.bisect_right(ids, run.after) : bisect.bisect_right(ids, run.last)]


def moment(micros: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=micros)


# -- bounds ------------------------------------------------------------------------------------------------------------


@given(st.sets(IDS, max_size=20), IDS, IDS)
def test_a_run_holds_exactly_what_lies_above_its_start_up_to_its_end(
    ids: set[StreamId], after: StreamId, last: StreamId
) -> None:
    held = sorted(ids)
    run = run_of("s", head_of(held), after, last, Narrowing())
    assert inside(run, held) == [one for one in held if after < one <= last]
    assert run is None or 1 <= run.count <= len(held)


def test_a_run_ends_at_the_newest_entry_and_knows_the_size_of_a_whole_stream() -> None:
    head = Head(StreamId(5, 0), StreamId(9, 3), 700, 20)
    whole = run_of("s", head, MIN_ID, MAX_ID, Narrowing())
    assert whole is not None
    assert (whole.after, whole.last, whole.count) == (StreamId(5, 0).previous(), StreamId(9, 3), 700)


def test_an_empty_stream_has_no_run() -> None:
    assert run_of("s", Head(None, None, 0), MIN_ID, MAX_ID, Narrowing()) is None


# -- filters -----------------------------------------------------------------------------------------------------------

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
        for one in inside(run_of(stream, head_of(held), MIN_ID, MAX_ID, narrowing), held)
    ]
    kept = [one for one in held if all(keeps(one_filter, one) for one_filter in filters)]
    assert set(kept) <= set(read)


HELD = [StreamId(1_700_000_000_000 + n, 0) for n in range(0, 1000, 10)]


def read_under(*filters: Filter, ids: list[StreamId] = HELD) -> list[int]:
    """The milliseconds above 1.7e12 of the entries that are read under these filters."""
    run = run_of("s", head_of(ids), MIN_ID, MAX_ID, narrowing_of(filters, COLUMNS))
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
    run = run_of("s", head_of(ids), MIN_ID, MAX_ID, narrowing_of([GreaterThan(("_id",), "15-0")], COLUMNS))
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


# -- cuts --------------------------------------------------------------------------------------------------------------


def look_at(ids: list[StreamId], run: EntryRange, at: StreamId, count: int = 8) -> Look:
    """What survey asks a server."""
    begin = bisect.bisect_left(ids, at)
    found = [one for one in ids[begin : begin + count] if one <= run.last]
    same = [one.seq for one in ids[bisect.bisect_left(ids, StreamId(at.ms, 0)) :][:2000] if one.ms == at.ms]
    return Look(at, tuple(found), len(found) < count, max(same, default=0))


def cut_up(ids: list[StreamId], run: EntryRange, entries: int) -> tuple[list[EntryRange], int]:
    """(parts, rounds of looks)"""
    looks: list[Look] = []
    places = first_places(run, entries, 256)
    rounds = 0
    while places and rounds < 6:
        looks += [look_at(ids, run, at) for at in places]
        places = further_places(run, looks, entries, len(ids), 256)
        rounds += 1
    return cut(run, looks, entries, len(ids)), rounds


def assert_whole(parts: list[EntryRange], run: EntryRange) -> None:
    assert parts[0].after == run.after
    assert parts[-1].last == run.last
    for before, after in itertools.pairwise(parts):
        assert before.last == after.after
    assert all(part.after < part.last for part in parts)


@given(st.sets(IDS, min_size=1, max_size=200), IDS, IDS, st.integers(1, 40))
def test_parts_touch_and_cover_the_run_whatever_its_ids(
    ids: set[StreamId], after: StreamId, last: StreamId, entries: int
) -> None:
    held = sorted(ids)
    run = run_of("s", head_of(held), after, last, Narrowing())
    if run is not None:
        parts, _ = cut_up(held, run, entries)
        assert_whole(parts, run)


@settings(deadline=None)  # a machine with other work to do
@given(st.data())
def test_parts_touch_and_cover_the_run_whatever_the_looks_say(data: st.DataObject) -> None:
    """The stream may change between two looks, and estimates may be absurd: nothing is lost or doubled by it."""
    run = EntryRange("s", StreamId(10, 3), StreamId(1000, 7), data.draw(st.integers(1, 500)), owned=True, counted=False)
    looks = []
    for at in first_places(run, 10, 64):
        drawn = data.draw(st.sets(st.builds(StreamId, st.integers(at.ms, 1000), st.integers(0, 12)), max_size=4))
        above = sorted(one for one in drawn if at <= one <= run.last)
        looks.append(Look(at, tuple(above), not above or data.draw(st.booleans()), data.draw(st.integers(0, 9))))
    assert_whole(cut(run, looks, 10, 500), run)
    assert all(run.after < at <= run.last for at in further_places(run, looks, 10, 500, 64))


def burst_in_a_day() -> list[StreamId]:
    sparse = [StreamId(1_700_000_000_000 + 86_400 * n, 0) for n in range(1000)]
    burst = [StreamId(1_700_040_000_000 + n // 100, 1 + n % 100) for n in range(49_000)]
    return sorted(sparse + burst)


SHAPES = {
    "even": [StreamId(1_700_000_000_000 + 37 * n, 0) for n in range(50_000)],
    "numbered": [StreamId(n + 1, 0) for n in range(50_000)],
    "one millisecond": [StreamId(7, n) for n in range(50_000)],
    "a burst in a day": burst_in_a_day(),
    "loaded at once": [StreamId(1_700_000_000_000 + n // 300, n % 300) for n in range(50_000)],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("part", ["whole", "tenth"])
def test_parts_are_about_as_large_as_asked_for_whatever_the_rhythm(shape: str, part: str) -> None:
    ids = SHAPES[shape]
    bounds = (MIN_ID, MAX_ID) if part == "whole" else (ids[20_000], ids[25_000])
    run = run_of("s", head_of(ids), *bounds, Narrowing())
    assert run is not None
    entries = 5_000 if part == "whole" else 500
    parts, rounds = cut_up(ids, run, entries)
    sizes = [len(inside(one, ids)) for one in parts]
    assert sum(sizes) == len(inside(run, ids))
    assert max(sizes) <= 2 * entries
    assert len(parts) <= 3 * sum(sizes) / entries
    assert rounds <= (1 if shape in ("even", "numbered", "one millisecond") else 6)
