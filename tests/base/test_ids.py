"""Stream ids: what is one, what is not, and their order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import MAX_ID, MIN_ID, U64_MAX, InvalidStreamId, StreamId

u64 = st.integers(0, U64_MAX)


@given(u64, u64)
def test_text_of_an_id_parses_back(ms: int, seq: int) -> None:
    assert StreamId.parse(str(StreamId(ms, seq))) == StreamId(ms, seq)
    assert StreamId.parse(bytes(StreamId(ms, seq))) == StreamId(ms, seq)


@given(u64, u64)
def test_next_and_previous_are_neighbours(ms: int, seq: int) -> None:
    one = StreamId(ms, seq)
    if one != MAX_ID:
        assert one.next() > one
        assert one.next().previous() == one


def test_the_ends_of_the_range_are_errors() -> None:
    with pytest.raises(OverflowError):
        MAX_ID.next()
    with pytest.raises(OverflowError):
        MIN_ID.previous()


def test_a_missing_sequence_is_filled() -> None:
    assert StreamId.parse("7") == StreamId(7, 0)
    assert StreamId.parse("7", U64_MAX) == StreamId(7, U64_MAX)


NO_IDS = ["", "-", "a", "1-", "1-a", "-1", "1-2-3", "1 ", "+1", "²", str(U64_MAX + 1), "1-" + "9" * 30]


@pytest.mark.parametrize("text", NO_IDS)
def test_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidStreamId, match="not an entry ID"):
        StreamId.parse(text)
