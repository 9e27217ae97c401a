"""Where batches end whose entries nobody delivers: about the limit, whatever ids a stream has. Without a server."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.model.ids import U64_MAX, StreamId
from spark_streams.source.batch.batch_ends import Course, Step, course_of_ids, course_of_probes, first_part
from spark_streams.source.batch.split_points import Probe, first_positions, further_positions
from spark_streams.source.entry_range import EntryRange
from tests.source.batch.held_ids import IDS


def evenly(count: int) -> list[StreamId]:
    return [StreamId(1_700_000_000_000 + n * 3, 0) for n in range(count)]


def in_bursts(count: int) -> list[StreamId]:
    """Some thousand entries within a few milliseconds, then nothing for an hour."""
    chance, ids, ms = random.Random(1), list[StreamId](), 1_700_000_000_000
    while len(ids) < count:
        ms += 3_600_000
        for _ in range(chance.randrange(1, 40)):
            ids += [StreamId(ms, seq) for seq in range(chance.randrange(1, 300))]
            ms += 1
    return ids[:count]


def in_one_millisecond(count: int) -> list[StreamId]:
    return [StreamId(7, seq) for seq in range(1, count + 1)]


def huge(count: int) -> list[StreamId]:
    return [StreamId(U64_MAX - 1, U64_MAX - count + n) for n in range(count)]


def slow_then_fast(count: int) -> list[StreamId]:
    """A trickle over months, and nearly all of it within the last minute."""
    slow = [StreamId(1_600_000_000_000 + n * 10_000_000, 0) for n in range(count // 100)]
    return [*slow, *(StreamId(1_700_000_000_000 + n // 50, n % 50) for n in range(count - len(slow)))]


def probe_of(ids: list[StreamId], span: EntryRange, at: StreamId, count: int = 8) -> Probe:
    """A probe as a server would answer it."""
    begin = bisect_left(ids, at)
    found = [entry_id for entry_id in ids[begin : begin + count] if entry_id <= span.last]
    deepest = bisect_right(ids, StreamId(at.ms, U64_MAX)) - 1
    same = ids[deepest].seq if deepest >= 0 and ids[deepest].ms == at.ms else 0
    below = ids[begin - 1] if begin and ids[begin - 1] > span.after else None
    return Probe(at, tuple(found), len(found) < count, same, below)


def course_of(ids: list[StreamId], span: EntryRange, most: int, ahead: int) -> tuple[Course, int]:
    """As a query plans: it narrows the span to what the next batches need, and looks closer there. The course, and how
    many ids were seen for it."""
    seen = 0
    for _ in range(6):
        if span.count <= 2 * ahead:
            break
        probes = [probe_of(ids, span, at) for at in first_positions(span, ahead, 256)]
        seen += 8 * len(probes)
        span = first_part(span, probes, ahead)
    probes, positions = [], first_positions(span, max(1, most // 8), 256)
    for _ in range(6):
        probes += [probe_of(ids, span, at) for at in positions]
        seen += 8 * len(positions)
        positions = further_positions(span, probes, max(1, most // 8), span.count, 256)
        if not positions:
            break
    return course_of_probes(span, probes, max(1, most // 8)), seen


def batches_of(ids: list[StreamId], most: int) -> tuple[list[int], int]:
    """How many entries each batch has until the stream is at its end, and how many ids were seen for it."""
    sizes, after, seen = list[int](), ids[0].previous(), 0
    course = Course(after, (), is_exact=True)
    while left := len(ids) - bisect_right(ids, after):
        if left <= most:
            return [*sizes, left], seen
        if sum(step.count for step in course.steps) < most:
            span = EntryRange("s", after, ids[-1], left, owned=True)
            course, more = course_of(ids, span, most, min(left, 8 * most))
            seen += more
        taken, course = course.split(course.within(most))
        sizes.append(bisect_right(ids, taken.steps[-1].last) - bisect_right(ids, after))
        assert taken.steps[-1].last > after
        after = taken.steps[-1].last
    return sizes, seen


@pytest.mark.parametrize(
    "ids", [evenly, in_bursts, in_one_millisecond, huge, slow_then_fast], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("most", [3_000, 10_000])
def test_batches_have_about_the_limit_and_few_ids_are_seen_for_it(ids: object, most: int) -> None:
    held = ids(200_000)  # type: ignore[operator]
    sizes, seen = batches_of(held, most)
    assert sum(sizes) == 200_000
    middle = sorted(sizes[:-1])
    assert 0.7 * most <= middle[len(middle) // 2] <= 1.1 * most
    assert middle[-1] <= 1.8 * most
    assert seen < 200_000


@given(st.sets(IDS, min_size=1, max_size=200), st.integers(1, 50))
def test_whatever_the_ids_batches_follow_each_other_to_the_end(ids: set[StreamId], most: int) -> None:
    assert sum(batches_of(sorted(ids), most)[0]) == len(ids)


@given(st.sets(IDS, min_size=1, max_size=100), st.integers(1, 120), st.integers(1, 30), st.integers(1, 30))
def test_ids_that_were_seen_one_by_one_make_exact_batches(
    ids: set[StreamId], asked: int, most: int, entries: int
) -> None:
    held = sorted(ids)
    span = EntryRange("s", held[0].previous(), held[-1], len(held), owned=True)
    course = course_of_ids(span, held[:asked], asked)
    taken, left = course.split(course.within(most))
    assert len(taken.steps) == min(most, asked, len(held))
    ranges = taken.ranges("s", entries)
    assert (ranges[0].after, ranges[-1].last) == (span.after, taken.steps[-1].last)
    assert all(one.last == other.after for one, other in itertools.pairwise(ranges))
    assert [one.count for one in ranges] == [bisect_right(held, r.last) - bisect_right(held, r.after) for r in ranges]
    assert all(one.counted and one.count <= entries for one in ranges)
    assert left.after == taken.steps[-1].last


def test_a_span_without_entries_is_passed_with_a_range_of_none() -> None:
    span = EntryRange("s", StreamId(3, 0), StreamId(9, 0), 4, owned=True)
    [only] = course_of_ids(span, [], 10).ranges("s", 5)
    assert (only.after, only.last, only.count) == (span.after, span.last, 0)


def test_a_last_entry_that_was_deleted_is_passed_with_the_one_before_it() -> None:
    span = EntryRange("s", StreamId(3, 0), StreamId(9, 0), 4, owned=True)
    assert course_of_ids(span, [StreamId(4, 0), StreamId(5, 0)], 10).steps[-1] == Step(StreamId(9, 0), 1)
