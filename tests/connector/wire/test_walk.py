"""The search for the starts of entries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.wire import walk
from spark_streams.connector.wire.lines import ShapeError

filler = st.integers(0, 300).map(b"x".__mul__)
piece = st.one_of(st.sampled_from([b"*2", b"*", b"2", b"**2", b"x" * 64, b"x" * 63]), filler)


@pytest.mark.parametrize("block", [64, 100, 1 << 20])
@pytest.mark.parametrize("sparse", [0, 1, 1 << 30])
@given(st.lists(piece, min_size=1, max_size=12).map(b"".join).filter(lambda data: len(data) > 1))
def test_places(block: int, sparse: int, data: bytes) -> None:
    """Both ways of the search find each `*2`, also at the border of two blocks."""
    expected = [offset for offset in range(len(data) - 1) if data[offset : offset + 2] == b"*2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "_BLOCK", block)
        patch.setattr(walk, "_SPARSE", sparse)
        try:
            places = walk._places_of_two(np.frombuffer(data, np.uint8)).tolist()
        except ShapeError:
            assert len(expected) > block // 9
        else:
            assert places == expected
