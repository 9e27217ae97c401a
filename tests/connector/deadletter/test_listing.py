"""Dead letters counted by reason as they come and go: against a stream that is a dictionary, and what is read for
it.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.deadletter.listing import REASONS, KindCounts, ReasonCounts


class Stream:
    """Reasons by id, as a server would hold them; an empty reason is no dead letter."""

    def __init__(self, counts: bool = True) -> None:
        self.entries: dict[StreamId, str] = {}
        self.last = MIN_ID
        self.added = 0
        self.counts = counts
        self.read = 0  # entries that somebody has read

    def add(self, *reasons: str) -> None:
        for reason in reasons:
            self.last = StreamId(self.last.ms + 1, 0)
            self.entries[self.last] = reason
            self.added += 1

    def remove(self, *ids: StreamId) -> None:
        for one in ids:
            del self.entries[one]

    @property
    def ids(self) -> list[StreamId]:
        return sorted(self.entries)

    def tell(self, counts: ReasonCounts) -> None:
        first = self.ids[0] if self.entries else MIN_ID
        counts.update(len(self.entries), first, self.last, self.added if self.counts else None)

    def page(self, counts: ReasonCounts, size: int) -> bool:
        """Read what is wanted next; whether anything was."""
        wanted = counts.next_range
        if wanted is None:
            return False
        found = [one for one in self.ids if wanted[0] <= one <= wanted[1]][:size]
        self.read += len(found)
        letters = KindCounts(max_kinds=REASONS)
        ids = pa.array([bytes(one) for one in found], pa.binary())
        column = pa.array([self.entries[one].encode() for one in found], pa.binary())
        letters.add(ids, [column], np.flatnonzero([bool(self.entries[one]) for one in found]))
        counts.read(found[-1] if len(found) == size else wanted[1], len(found), letters)
        return True

    def count_all(self, counts: ReasonCounts, size: int = 10) -> int:
        """Until all is known; the number of entries that were read for it."""
        self.tell(counts)
        before = self.read
        while self.page(counts, size):
            pass
        return self.read - before

    @property
    def truth(self) -> dict[str, int]:
        return dict(Counter(reason for reason in self.entries.values() if reason))


def counts_by_reason(counts: ReasonCounts) -> dict[str, int]:
    return {reason: count.letters for (reason,), count in counts.counts}


def test_what_came_is_read_once_and_nothing_where_nothing_came() -> None:
    stream, counts = Stream(), ReasonCounts(section=10)
    stream.add(*["a"] * 25, *["b"] * 8, "")
    assert stream.count_all(counts) == 34
    assert counts_by_reason(counts) == {"a": 25, "b": 8}
    assert stream.count_all(counts) == 0
    stream.add("c")
    assert stream.count_all(counts) == 1
    assert counts_by_reason(counts) == {"a": 25, "b": 8, "c": 1}
    assert counts.uncounted == 0


def test_what_a_trim_cuts_off_in_front_costs_one_section() -> None:
    stream, counts = Stream(), ReasonCounts(section=10)
    stream.add(*["a"] * 50, *["b"] * 50)
    stream.count_all(counts)
    stream.remove(*stream.ids[:55])
    assert stream.count_all(counts) <= 10
    assert counts_by_reason(counts) == {"b": 45}


def test_a_trim_with_each_entry_that_comes_costs_a_section_at_most() -> None:
    stream, counts = Stream(), ReasonCounts(section=10)
    stream.add(*["a"] * 100)
    stream.count_all(counts)
    for _ in range(100):
        stream.add("b")
        stream.remove(stream.ids[0])
        assert stream.count_all(counts) <= 11
        assert counts_by_reason(counts) == stream.truth


def test_what_goes_from_the_middle_is_found_by_reading_again() -> None:
    stream, counts = Stream(), ReasonCounts(section=10)
    stream.add(*["a", "b"] * 50)
    stream.count_all(counts)
    stream.remove(*[one for one, reason in stream.entries.items() if reason == "a"])
    stream.add("c")
    assert stream.count_all(counts) <= 101
    assert counts_by_reason(counts) == {"b": 50, "c": 1}


def test_counting_goes_on_where_the_last_look_left_it_off() -> None:
    stream, counts = Stream(), ReasonCounts(section=10)
    stream.add(*["a"] * 30)
    for left in (20, 10, 0):
        stream.tell(counts)
        assert stream.page(counts, 10)
        assert counts.uncounted == left
    assert counts_by_reason(counts) == {"a": 30}


@pytest.mark.parametrize("entries", [3, 40])
def test_another_stream_of_that_name_is_counted_from_its_start(entries: int) -> None:
    stream, counts = Stream(), ReasonCounts(section=10)
    stream.add(*["a"] * 30)
    stream.count_all(counts)
    other = Stream()
    other.last = StreamId(5, 5) if entries < 30 else stream.last
    other.add(*["b"] * entries)
    other.count_all(counts)
    assert counts_by_reason(counts) == {"b": entries}


def test_a_stream_that_is_emptied_has_none_and_is_filled_again() -> None:
    stream, counts = Stream(), ReasonCounts(section=10)
    stream.add(*["a"] * 30)
    stream.count_all(counts)
    stream.remove(*stream.ids)
    assert stream.count_all(counts) == 0
    assert counts_by_reason(counts) == {}
    stream.add("b")
    stream.count_all(counts)
    assert counts_by_reason(counts) == {"b": 1}


def test_many_sections_become_fewer_and_longer_ones() -> None:
    stream, counts = Stream(), ReasonCounts(section=10, sections=8)
    stream.add(*["a", "b", "c"] * 400)
    stream.count_all(counts)
    assert counts_by_reason(counts) == {"a": 400, "b": 400, "c": 400}
    assert len(counts._sections) <= 8
    stream.remove(*stream.ids[:3])
    assert stream.count_all(counts) <= 400
    assert counts_by_reason(counts) == {"a": 399, "b": 399, "c": 399}


def test_reasons_beyond_a_few_are_one() -> None:
    stream, counts = Stream(), ReasonCounts()
    stream.add(*[f"bad value {n}" for n in range(200)])
    stream.count_all(counts, size=50)
    assert len(counts_by_reason(counts)) == REASONS + 1
    assert counts_by_reason(counts)["(others)"] == 200 - REASONS


def test_the_newest_dead_letter_of_a_reason_is_reported() -> None:
    stream, counts = Stream(), ReasonCounts(section=3)
    stream.add("a", "b", "a", "b", "b")
    stream.count_all(counts, size=2)
    assert {reason: count.last for (reason,), count in counts.counts} == {"a": "3-0", "b": "5-0"}


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_and_goes_between_looks_and_while_they_read(seed: int) -> None:
    chance = random.Random(seed)
    stream = Stream(counts=bool(seed % 2))
    counts = ReasonCounts(section=chance.choice([1, 7, 40]), sections=chance.choice([2, 5, 50]))

    def happens() -> None:
        what = chance.randrange(5)
        if what < 2:
            stream.add(*[chance.choice(["a", "b", "c", ""]) for _ in range(chance.randrange(30))])
        elif what == 2:
            stream.remove(*stream.ids[: chance.randrange(len(stream.entries) + 1)])
        elif what == 3:
            stream.remove(*[one for one in stream.ids if chance.random() < 0.3])
        else:
            reason = chance.choice("abc")
            stream.remove(*[one for one, its in stream.entries.items() if its == reason])

    for _ in range(40):
        happens()
        stream.tell(counts)
        for _ in range(chance.randrange(6)):
            stream.page(counts, chance.choice([1, 5, 50]))
            if chance.random() < 0.3:
                happens()
    for _ in range(3):  # what went while a look was reading, the next ones find
        stream.count_all(counts)
    assert counts_by_reason(counts) == stream.truth
    assert counts.uncounted == 0
