"""How a batch's entries and bytes are divided between streams. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import pytest

from spark_streams.model.ids import StreamId
from spark_streams.options.per_stream import PerStream
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS
from spark_streams.source.quota import BatchQuota, take_in_parts
from spark_streams.source.sampled_size import SampledSize

MANY = 1 << 62
FREE = BatchQuota(None, PerStream[int | None](None, {}), None)
SMALL = SampledSize(10.0, 50)
LARGE = SampledSize(30_000.0, 1)


def test_without_a_limit_all_entries_are_taken() -> None:
    assert FREE.divide({"a": 5, "b": MANY}, 0) == {"a": 5, "b": MANY}


def test_bytes_become_entries_by_the_average_size() -> None:
    quota = replace(FREE, size=1_000)
    assert quota.divide({"a": 500}, 0, {"a": SMALL}) == {"a": 100}
    assert quota.divide({"a": 50}, 0, {"a": SMALL}) == {"a": 50}
    left = quota.without({"a": 40}, {"a": SMALL})
    assert left.size == 600
    assert left.divide({"a": MANY}, 0, {"a": SMALL}) == {"a": 60}
    assert left.without({"a": 60}, {"a": SMALL}).is_full


def test_bytes_are_shared_and_what_one_leaves_others_have() -> None:
    quota = replace(FREE, size=4_000)
    sizes = dict.fromkeys(("a", "b", "c"), SMALL)
    assert quota.divide({"c": 900, "a": 900}, 0, sizes) == {"c": 200, "a": 200}
    assert quota.divide({"c": 30, "a": 900, "b": 900}, 0, sizes) == {"c": 30, "a": 185, "b": 185}


def test_a_number_of_entries_and_bytes_hold_together() -> None:
    sizes = dict.fromkeys(("a", "b"), SMALL)
    assert replace(FREE, entries=50, size=2_000).divide({"a": 90, "b": 90}, 0, sizes) == {"a": 25, "b": 25}
    assert replace(FREE, entries=50, size=200).divide({"a": 90, "b": 90}, 0, sizes) == {"a": 10, "b": 10}
    of_a = replace(FREE, of_stream=PerStream[int | None](None, {"a": 5}), size=200)
    assert of_a.divide({"a": 90, "b": 90}, 0, sizes) == {"a": 5, "b": 15}


def test_an_entry_above_the_limit_is_taken_and_streams_take_turns_at_being_first() -> None:
    quota, waiting = replace(FREE, size=9_000), {"a": MANY, "b": MANY, "large": MANY}
    sizes = {"a": SMALL, "b": SMALL, "large": LARGE}
    assert quota.divide({"large": 7}, 0, {"large": LARGE}) == {"large": 1}
    assert quota.divide(waiting, 2, sizes) == {"large": 1}
    assert quota.divide(waiting, 0, sizes) == {"a": 300, "b": 300, "large": 1}


@pytest.mark.parametrize("turn", range(5))
def test_many_streams_of_large_entries_have_one_beyond_the_limit_together(turn: int) -> None:
    streams = [f"s:{n}" for n in range(1_000)]
    found = replace(FREE, size=100_000).divide(dict.fromkeys(streams, 9), turn, dict.fromkeys(streams, LARGE))
    assert found == dict.fromkeys(sorted(streams)[turn : turn + 4], 1)


def test_one_byte_is_an_entry_of_a_stream_in_its_turn() -> None:
    sizes = dict.fromkeys("abc", SMALL)
    taken = [replace(FREE, size=1).divide(dict.fromkeys("abc", 4), turn, sizes) for turn in range(3)]
    assert taken == [{"a": 1}, {"b": 1}, {"c": 1}]


class Stream:
    """In place of a server: stream `s`, whose entries 1-0, 2-0 … have values of these sizes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.read = 0

    def execute_each(
        self, commands: Sequence[tuple[str, str, bytes, str, str, int]]
    ) -> Iterator[list[tuple[bytes, list[bytes]]]]:
        for _, _, after, _, _, count in commands:
            first = StreamId.parse(after[1:]).ms
            found = self.sizes[first : first + count]
            self.read += len(found)
            yield [(b"", [b"", bytes(size)]) for size in found]

    def batches(self, limit: int) -> list[int]:
        """The bytes of all batches with this limit."""
        found, at = [], 0
        while at < len(self.sizes):
            ranges, _ = take_in_parts(
                self,  # type: ignore[arg-type]
                replace(FREE, size=limit),
                {"s": len(self.sizes) - at},
                {"s": StreamId(at, 0)},
                0,
                self.take,
                LIMITS,
            )
            count = sum(entries.count for entries in ranges)
            found.append(sum(self.sizes[at : at + count]))
            at += count
        return found

    def take(self, wanted: Mapping[str, int], after: Mapping[str, StreamId]) -> list[EntryRange]:
        last = StreamId(after["s"].ms + wanted["s"], 0)
        return [EntryRange("s", after["s"], last, wanted["s"], owned=True)]


CHANCE = random.Random(1)


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([100] * 50_000, 1.01),
        ([int(CHANCE.lognormvariate(5.8, 1.5)) + 1 for _ in range(50_000)], 1.6),
        (([50] * 5_000 + [2_000] * 500) * 10, 1.4),
        ([50] * 20_000 + [5_000] * 5_000, 1.1),
        ([5_000] * 2_000 + [50] * 100_000, 1.1),
        (random.Random(2).choices([100, 200_000], [99, 1], k=20_000), 2.5),
    ],
    ids=["alike", "lognormal", "runs of large ones", "larger from then on", "smaller from then on", "one in a hundred"],
)
def test_batches_have_about_the_bytes_asked_for_however_sizes_change(sizes: list[int], most: float) -> None:
    """most: times the limit, of the largest batch."""
    limit = 4 << 20
    stream = Stream(sizes)
    found = stream.batches(limit)
    assert sum(found) == sum(sizes)
    assert max(found) <= most * limit
    assert 0.5 * limit <= median(found[:-1]) <= 1.2 * limit
    assert stream.read <= 0.07 * len(sizes)
