"""Streams as sets of ids, for tests of what a batch reads."""

from __future__ import annotations

import bisect

from hypothesis import strategies as st

from spark_streams.base.ids import MIN_ID, U64_MAX, StreamId
from spark_streams.connector.source.batch_plan import StreamHead
from spark_streams.connector.source.partitioning import Part
from spark_streams.connector.wire.pending_page import texts_of

IDS = st.builds(StreamId, st.integers(0, 1500) | st.integers(0, U64_MAX), st.integers(0, 12)).filter(
    lambda one: one > MIN_ID
)


def head_of(ids: list[StreamId]) -> StreamHead:
    return StreamHead(min(ids), max(ids), len(ids), 20) if ids else StreamHead(None, None, 0)


def inside(part: Part | None, ids: list[StreamId]) -> list[StreamId]:
    """Which of the stream's ids are read."""
    if part is None:
        return []
    if isinstance(part.by, bytes):
        ids = sorted({StreamId.parse(one) for one in texts_of(part.by).to_pylist()} & set(ids))
    return ids[bisect.bisect_right(ids, part.range.after) : bisect.bisect_right(ids, part.range.last)]
