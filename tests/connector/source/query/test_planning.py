"""Planning: the streams that a batch begins, and what planning a batch of many streams costs."""

from __future__ import annotations

import time
from dataclasses import replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.source.query.planning import begun_with

START, END = StreamId(0, 0), StreamId(9, 0)


def offset(*streams: str, number: int = 1, taken: tuple[str, ...] = ()) -> Offset:
    """Return the end of a batch. number: of each stream's batches; taken: streams of which it has entries."""
    at = {stream: StreamOffset(END, number, "c-1", 5) for stream in streams}
    return Offset("g", "spark", at, {stream: Range(stream, START, END, 5) for stream in taken}, token="c-1")


def test_a_batch_begins_the_streams_of_which_it_is_the_first_batch() -> None:
    """`other` had its first batch before, and `waiting` has none yet."""
    end = offset("first", "other", taken=("first",))
    waiting = StreamOffset(START, 0, "", 0)
    end = replace(end, at={**end.at, "waiting": waiting})
    begin = Offset("g", "spark", {"waiting": waiting})
    assert begun_with(begin, end) == ["first"]
    assert begun_with(begin, offset("first", number=2, taken=("first",))) == []


def test_a_batch_begins_a_stream_whose_account_it_corrects() -> None:
    end = offset("s", number=0)
    assert begun_with(Offset("g", "spark", {"s": StreamOffset(END, 0, "c-1", 4)}), end) == ["s"]
    assert begun_with(Offset("g", "spark", {}), end) == ["s"]
    assert begun_with(Offset("g", "spark", {"s": StreamOffset(END, 0, "c-1", 5)}), end) == []


def test_the_first_batch_of_many_streams_is_planned_in_linear_time() -> None:
    """Time that grows with the square takes three seconds here."""
    streams = tuple(f"s:{number}" for number in range(5_000))
    end = offset(*streams, taken=streams)
    begun = time.process_time()
    assert len(begun_with(Offset("g", "spark", {}), end)) == len(streams)
    assert time.process_time() - begun < 0.5
