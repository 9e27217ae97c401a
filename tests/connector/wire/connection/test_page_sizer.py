"""How many entries the next page is asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.wire.connection.connection import PageSizer

COUNTS = st.integers(1, 100_000)


@given(COUNTS, COUNTS, st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 1 << 30)), max_size=10))
def test_a_page_has_an_entry_at_least_grows_tenfold_and_stays_below_the_largest(
    first: int, largest: int, pages: list[tuple[int, int]]
) -> None:
    sizer = PageSizer(min(first, largest), largest, 4 << 20)
    for entries, received in pages:
        before = sizer.size
        sizer.learn(entries, received)
        assert 1 <= sizer.size <= min(largest, 10 * before)


def test_entries_of_the_same_size_fill_a_page_and_do_not_exceed_it() -> None:
    sizer = PageSizer(10, 1_000_000, 1000)
    for _ in range(5):
        sizer.learn(sizer.size, 7 * sizer.size)
    assert sizer.size == 1000 // 7


def test_a_page_without_entries_tells_nothing() -> None:
    sizer = PageSizer(10, 100, 1000)
    sizer.learn(0, 500)
    assert sizer.size == 10


def test_a_reply_that_was_too_large_is_asked_for_in_far_smaller_pages() -> None:
    sizer = PageSizer(5_000, 10_000, 1000)
    sizer.too_large()
    assert sizer.size == 50
    sizer.too_large(700)
    assert sizer.size == 7
    sizer.too_large()
    assert sizer.size == 1
