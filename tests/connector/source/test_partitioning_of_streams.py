"""Where streams are cut into tasks, without a server and without Spark."""

from __future__ import annotations

import bisect
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.source.batch_plan import Narrowing, part_of
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, Part, Probe, cut, first_positions, further_positions
from tests.connector.source.held_ids import IDS, head_of, inside


def probe_of(ids: list[StreamId], run: Range, position: StreamId, count: int = 8) -> Probe:
    """A probe as a server would answer it."""
    begin = bisect.bisect_left(ids, position)
    above = [entry_id for entry_id in ids[begin : begin + count] if entry_id <= run.last]
    same_ms = ids[bisect.bisect_left(ids, StreamId(position.ms, 0)) :][:2000]
    deepest = max((entry_id.seq for entry_id in same_ms if entry_id.ms == position.ms), default=0)
    return Probe(position, tuple(above), len(above) < count, deepest)


def cut_up(ids: list[StreamId], run: Range, entries: int) -> tuple[list[Range], int]:
    """Return the parts, and the number of rounds of probes."""
    probes: list[Probe] = []
    positions = first_positions(run, entries, 256)
    rounds = 0
    while positions and rounds < 6:
        probes += [probe_of(ids, run, position) for position in positions]
        positions = further_positions(run, probes, entries, len(ids), 256)
        rounds += 1
    return cut(run, probes, entries, len(ids)), rounds


def assert_whole(parts: list[Range], run: Range) -> None:
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
    run = part_of("s", head_of(held), after, last, Narrowing())
    if run is not None:
        parts, _ = cut_up(held, run.range, entries)
        assert_whole(parts, run.range)


@pytest.mark.in_turn
@settings(deadline=None)  # a machine with other work to do
@given(st.data())
def test_parts_touch_and_cover_the_run_whatever_the_probes_say(data: st.DataObject) -> None:
    """The stream may change between two probes, and estimates may be absurd: nothing is lost or doubled by it."""
    run = Range("s", StreamId(10, 3), StreamId(1000, 7), data.draw(st.integers(1, 500)))
    probes = []
    for at in first_positions(run, 10, 64):
        drawn = data.draw(st.sets(st.builds(StreamId, st.integers(at.ms, 1000), st.integers(0, 12)), max_size=4))
        above = sorted(one for one in drawn if at <= one <= run.last)
        probes.append(Probe(at, tuple(above), not above or data.draw(st.booleans()), data.draw(st.integers(0, 9))))
    assert_whole(cut(run, probes, 10, 500), run)
    assert all(run.after < at <= run.last for at in further_positions(run, probes, 10, 500, 64))


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
    run = part_of("s", head_of(ids), *bounds, Narrowing())
    assert run is not None
    entries = 5_000 if part == "whole" else 500
    parts, rounds = cut_up(ids, run.range, entries)
    sizes = [len(inside(Part(one, ALL), ids)) for one in parts]
    assert sum(sizes) == len(inside(run, ids))
    assert max(sizes) <= 2 * entries
    assert len(parts) <= 3 * sum(sizes) / entries
    assert rounds <= (1 if shape in ("even", "numbered", "one millisecond") else 6)
