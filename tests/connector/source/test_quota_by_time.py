"""The limit of a batch follows the time of the batches before it (targetBatchTime): the numbers, without a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from spark_streams.connector.source.quota import FIRST, GROWTH, MINIMUM, BatchPace, TimedBatch

TARGET = 10.0


@dataclass
class Query:
    """A query that is never idle. cost: seconds of a row, by the number of the batch; start_up: of the first batch of
    each run, in addition."""

    cost: Callable[[int], float]
    backlog: int = 1_000_000
    most: int | None = None
    start_up: float = 0.0
    overhead: float = 0.3  # seconds of a batch besides its rows
    before: int = 0  # entries of the batch before, which the checkpoint keeps
    now: float = 1000.0
    pace: BatchPace = field(default_factory=lambda: BatchPace(TARGET))
    batches: list[TimedBatch] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)

    def run(self, batches: int) -> list[float]:
        """Run further batches; the seconds that each took."""
        for _ in range(batches):
            self.pace = self.pace.called(self.now).limited(self.before, self.most)
            assert self.pace.limit is not None
            entries = min(self.pace.limit, self.backlog)
            self.pace = self.pace.planned(entries, self.now)
            seconds = self.overhead + entries * self.cost(len(self.batches)) + (0 if self.pace.timed else self.start_up)
            self.now += seconds
            self.backlog -= entries
            self.before = entries
            self.batches.append(TimedBatch(entries, seconds))
            self.limits.append(self.pace.limit)
        return [batch.seconds for batch in self.batches[-batches:]]

    def restart(self) -> None:
        """Begin a new run, which knows what is in the checkpoint."""
        self.pace = BatchPace(TARGET)


@pytest.mark.parametrize("start_up", [0.0, 4.0, 14.0])
@pytest.mark.parametrize("cost", [0.001, 0.0001])
def test_the_fifth_batch_takes_the_target_and_none_takes_much_longer(cost: float, start_up: float) -> None:
    """Also if the first batch is slow, because Spark starts Python processes in it."""
    query = Query(lambda _: cost, start_up=start_up)
    seconds = query.run(8)
    assert query.batches[0].entries == 1_000
    assert seconds[4:] == pytest.approx([TARGET] * 4, rel=0.2)
    assert max([seconds[0] - start_up, *seconds[1:]]) <= 1.5 * TARGET


def test_a_fast_sink_gets_ten_times_as_many_entries_each_time() -> None:
    query = Query(lambda _: 1e-6, backlog=1 << 40)
    query.run(6)
    assert [batch.entries for batch in query.batches[:4]] == [1_000, 10_000, 100_000, 1_000_000]
    assert all(after <= GROWTH * before for before, after in pairwise(query.limits))
    assert query.run(3)[-1] == pytest.approx(TARGET, rel=0.1)


def test_a_run_begins_with_a_small_batch() -> None:
    """So a sink that has become ten times slower meanwhile takes about the target for it."""
    query = Query(lambda number: 0.001 if number < 6 else 0.01)
    query.run(6)
    query.restart()
    seconds = query.run(5)
    assert query.limits[6] == FIRST < query.batches[5].entries
    assert seconds == pytest.approx([TARGET] * 5, rel=0.2)


@pytest.mark.parametrize(("before", "first"), [(0, FIRST), (7, MINIMUM), (300, 300), (1 << 40, FIRST)])
def test_the_first_batch_of_a_run_has_no_more_entries_than_the_batch_before(before: int, first: int) -> None:
    """Which was small if the sink was slow, or if it has failed again and again."""
    query = Query(lambda _: 0.001, before=before)
    query.run(1)
    assert query.limits == [first]


def test_only_the_batch_that_finds_the_sink_slower_takes_longer() -> None:
    """Its entries are in Spark's log before its time is known."""
    query = Query(lambda number: 0.001 if number < 6 else 0.01)
    seconds = query.run(10)
    assert seconds[6] == pytest.approx(10 * TARGET, rel=0.1)
    assert seconds[7:] == pytest.approx([TARGET] * 3, rel=0.2)


def test_a_sink_that_becomes_slower_by_and_by_is_followed() -> None:
    query = Query(lambda number: 0.001 * min(10.0, 1.3 ** max(0, number - 5)))
    seconds = query.run(20)
    assert query.cost(19) == 0.01
    assert max(seconds) <= 1.5 * TARGET
    assert seconds[-1] == pytest.approx(TARGET, rel=0.2)


def test_a_sink_that_is_fast_again_has_batches_of_the_target_again() -> None:
    query = Query(lambda number: 0.01 if 6 <= number < 9 else 0.001)
    seconds = query.run(18)
    assert max(seconds[7:]) <= 1.5 * TARGET
    assert seconds[-3:] == pytest.approx([TARGET] * 3, rel=0.2)


def test_one_fast_batch_alone_raises_the_next_one_little() -> None:
    pace = BatchPace(TARGET, (TimedBatch(10_000, 10), TimedBatch(10_000, 10), TimedBatch(10_000, 1)))
    assert pace.limited(10_000, None).limit == 14_285


def test_a_slow_batch_lowers_the_next_one_at_once() -> None:
    pace = BatchPace(TARGET, (TimedBatch(10_000, 10), TimedBatch(10_000, 10), TimedBatch(10_000, 100)))
    assert pace.limited(10_000, None).limit == 1_000


def test_a_batch_that_is_smaller_than_the_last_one_does_not_lower_its_rate() -> None:
    """Most of its time may be the fixed cost of a batch."""
    pace = BatchPace(TARGET, (TimedBatch(300, 3), TimedBatch(1_000, 4), TimedBatch(4_000, 5)))
    assert pace.limited(4_000, None).limit == 8_000


def test_the_first_batch_of_a_run_lowers_the_limit_to_a_half_at_most() -> None:
    pace = BatchPace(TARGET).planned(1_000, 0.0).called(60.0)
    assert pace.limited(1_000, None).limit == 500
    pace = pace.planned(500, 60.0).called(90.0)
    assert pace.limited(500, None).limit == 166


def test_on_a_busy_machine_the_fifth_batch_takes_the_target_too() -> None:
    """As measured there: each batch costs 2.7 s besides its rows, and the first one 35 s more."""
    query = Query(lambda _: 0.001, start_up=35.0, overhead=2.7)
    assert query.run(8)[4:] == pytest.approx([TARGET] * 4, rel=0.2)


def test_the_maximum_is_a_ceiling_also_below_the_minimum() -> None:
    query = Query(lambda _: 0.001, most=5_000)
    seconds = query.run(4)
    assert [batch.entries for batch in query.batches] == [1_000, 5_000, 5_000, 5_000]
    assert query.limits[-1] == 5_000
    assert max(seconds) < TARGET
    assert BatchPace(TARGET).limited(10, 50).limit == 50


def test_time_between_batches_is_in_none_of_them() -> None:
    """The call after a batch ends it; later calls find that there is nothing to read."""
    pace = BatchPace(TARGET).called(0.0).limited(0, None).planned(1_000, 0.0)
    for now in (1.3, 2.0, 3600.0):
        pace = pace.called(now)
    assert pace.timed == (TimedBatch(1_000, 1.3, is_first=True),)
    assert pace.limited(1_000, None).limit == 7_692


def test_a_batch_without_entries_says_nothing_about_the_rate() -> None:
    pace = BatchPace(TARGET).limited(0, None).planned(0, 0.0).called(30.0)
    assert pace.timed == ()
    assert pace.limited(0, None).limit == 1_000


def test_a_batch_that_takes_no_time_has_a_rate() -> None:
    pace = BatchPace(TARGET).planned(5, 7.0).called(7.0)
    assert pace.limited(5, None).limit == MINIMUM


def test_a_target_that_the_minimum_misses_is_a_problem() -> None:
    """The cost of a batch may be above the target, whatever the batch has."""
    pace, now, problems = BatchPace(TARGET), 0.0, []
    for _ in range(8):
        pace = pace.called(now).limited(0, None)
        problems.append(pace.problem())
        assert pace.limit is not None
        pace = pace.planned(pace.limit, now)
        now += 60.3
    assert problems[:3] == [None] * 3
    assert all(problem is not None and "a batch of 100 entries took 60.3 s" in problem for problem in problems[3:])
    assert pace.limit == MINIMUM
