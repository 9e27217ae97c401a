"""How a batch's entries and bytes are divided between streams. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_streams.connector.options.parsers import PerStream
from spark_streams.connector.source.quota import BatchQuota

MANY = 1 << 62
FREE = BatchQuota(None, PerStream[int | None](None, {}), None)
SMALL, LARGE = 10.0, 30_000.0  # average bytes of an entry


def test_without_a_limit_all_entries_are_taken() -> None:
    assert FREE.divide({"a": 5, "b": MANY}, 0) == {"a": 5, "b": MANY}


def test_bytes_become_entries_by_the_average_size() -> None:
    quota = replace(FREE, size=1_000, sizes={"a": SMALL})
    assert quota.divide({"a": 500}, 0) == {"a": 100}
    assert quota.divide({"a": 50}, 0) == {"a": 50}
    assert quota.limit_of("a") == 100
    left = quota.without({"a": 40})
    assert left.size == 600
    assert left.divide({"a": MANY}, 0) == {"a": 60}
    assert left.without({"a": 60}).is_full
    assert left.without({"a": 60}).limit_of("a") == 0


def test_bytes_are_shared_and_what_one_leaves_others_have() -> None:
    quota = replace(FREE, size=4_000, sizes=dict.fromkeys(("a", "b", "c"), SMALL))
    assert quota.divide({"c": 900, "a": 900}, 0) == {"c": 200, "a": 200}
    assert quota.divide({"c": 30, "a": 900, "b": 900}, 0) == {"c": 30, "a": 185, "b": 185}


def test_a_number_of_entries_and_bytes_hold_together() -> None:
    free = replace(FREE, sizes=dict.fromkeys(("a", "b"), SMALL))
    assert replace(free, entries=50, size=2_000).divide({"a": 90, "b": 90}, 0) == {"a": 25, "b": 25}
    assert replace(free, entries=50, size=200).divide({"a": 90, "b": 90}, 0) == {"a": 10, "b": 10}
    of_a = replace(free, of_stream=PerStream[int | None](None, {"a": 5}), size=200)
    assert of_a.divide({"a": 90, "b": 90}, 0) == {"a": 5, "b": 15}
    assert of_a.limit_of("a") == 5


def test_an_entry_above_the_limit_is_taken_and_streams_take_turns_at_being_first() -> None:
    quota = replace(FREE, size=9_000, sizes={"a": SMALL, "b": SMALL, "large": LARGE})
    waiting = {"a": MANY, "b": MANY, "large": MANY}
    assert quota.divide({"large": 7}, 0) == {"large": 1}
    assert quota.divide(waiting, 2) == {"large": 1}
    assert quota.divide(waiting, 0) == {"a": 300, "b": 300, "large": 1}


@pytest.mark.parametrize("turn", range(5))
def test_many_streams_of_large_entries_have_one_beyond_the_limit_together(turn: int) -> None:
    streams = [f"s:{n}" for n in range(1_000)]
    quota = replace(FREE, size=100_000, sizes=dict.fromkeys(streams, LARGE))
    assert quota.divide(dict.fromkeys(streams, 9), turn) == dict.fromkeys(sorted(streams)[turn : turn + 4], 1)


def test_one_byte_is_an_entry_of_a_stream_in_its_turn() -> None:
    quota = replace(FREE, size=1, sizes=dict.fromkeys("abc", SMALL))
    taken = [quota.divide(dict.fromkeys("abc", 4), turn) for turn in range(3)]
    assert taken == [{"a": 1}, {"b": 1}, {"c": 1}]
