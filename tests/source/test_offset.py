"""The offset in Spark's log."""

import json
from typing import Any

import pytest

from spark_streams.errors import OffsetError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.offset import Claimed, Count, Offset, Share
from spark_streams.spark.batch_starts import REPORT


def stream_id(ms: int) -> StreamId:
    return StreamId(ms, 0)


def test_an_offset_is_read_from_the_log() -> None:
    offset = Offset(
        "g",
        "c",
        {"b": stream_id(5), "a": StreamId(2**64 - 1, 0)},
        {"b": Share(7, True, stream_id(3))},
        {"a": (Claimed("c~claim~1", 2),)},
        "1f",
    )
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert list(offset.to_json()["streams"]) == ["a", "b"]


def test_a_stream_that_is_not_named_stands_at_the_start() -> None:
    assert Offset("g", "c")["a"] == MIN_ID


def test_the_end_of_a_batch_says_what_it_held() -> None:
    start = Offset("g", "c", {"a": stream_id(1), "b": stream_id(2)}, {"a": Share(99, True, MIN_ID)})
    end = start.after(
        [EntryRange("a", stream_id(1), stream_id(4), 3, True), EntryRange("a", stream_id(4), stream_id(9), 5, True)]
    )
    assert end.positions == {"a": stream_id(9), "b": stream_id(2)}
    assert end.shares == {"a": Share(8, True, stream_id(1))}


@pytest.mark.parametrize(
    "runs",
    [
        [
            EntryRange("a", stream_id(1), stream_id(4), 3, True),
            EntryRange("a", stream_id(5), stream_id(9), 5, True),
        ],  # something lies between two runs
        [
            EntryRange("a", stream_id(1), stream_id(4), 3, True),
            EntryRange("a", stream_id(4), stream_id(9), 5, False),
        ],  # others read there
    ],
)
def test_a_batch_with_gaps_or_others_entries_is_not_owned(runs: list[EntryRange]) -> None:
    assert not Offset("g", "c", {"a": stream_id(1)}).after(runs).shares["a"].owned


FORMAT_1 = {
    "format": 1,
    "group": "etl",
    "consumer": "spark",
    "token": "5f1c9a0be37d",
    "streams": {"flights": "1795150168606-197"},
    "batch": {"flights": "3 1795150168606-0 shared begun=1795150168600-0"},
    "claimed": {"flights": [{"consumer": "spark~claim~5f1c9a0be37d", "count": 2}]},
    "counts": {"flights": "7 9 missed=1 shared ahead"},
    "losses": {"flights": 4},
    "noAck": True,
}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_the_offset_of_an_unreleased_version_is_refused_with_what_to_do(version: int) -> None:
    """Whatever else is in it."""
    kept = {**FORMAT_1, "version": version}
    del kept["format"]
    with pytest.raises(OffsetError, match=r"an unreleased spark-streams has written .* a new checkpoint directory"):
        Offset.from_json(kept)


def test_format_1_is_read_as_it_was_written() -> None:
    offset = Offset.from_json(FORMAT_1)
    assert offset.to_json() == FORMAT_1
    assert offset.lost == {"flights": 4}
    assert offset.counts == {"flights": Count(7, 9, 1, shared=True, ahead=True)}
    assert offset.shares["flights"] == Share(3, False, StreamId(1795150168606, 0), StreamId(1795150168600, 0))
    assert offset.claimed["flights"] == (Claimed("spark~claim~5f1c9a0be37d", 2),)


@pytest.mark.parametrize(
    "count", [Count(7, 9), Count(7, 9, 2), Count(7, 9, 0, *[True] * 2), Count(7, 9, -1, ahead=True)]
)
def test_each_count_is_read_as_it_was_written(count: Count) -> None:
    assert Count.from_json(count.to_json()) == count


def test_what_spark_4_1_keeps_beside_an_offset_is_no_part_of_it() -> None:
    told = {**FORMAT_1, REPORT: {"lost": {"flights": 4}}}
    assert Offset.from_json(told).to_json() == FORMAT_1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": 2}, "has format 2, and this spark-streams reads format 1"),
        ({"regions": {}}, r"\(regions in an offset\)"),
        ({"claimed": {"flights": [{"consumer": "x", "count": 2, "of": 1}]}}, r"\(of in claimed\)"),
        ({"batch": {"flights": "3 0-0 from=0-0"}}, r"\(from= in batch\)"),
        ({"counts": {"flights": "7 9 seen"}}, r"\(seen in counts\)"),
    ],
)
def test_an_offset_of_a_newer_version_is_refused_with_what_to_do(change: dict[str, Any], field: str) -> None:
    with pytest.raises(OffsetError, match=f"{field}.*Install a spark-streams at least as new as the one"):
        Offset.from_json({**FORMAT_1, **change})


def test_what_is_counted_as_lost_goes_on_with_each_batch() -> None:
    begun = Offset("g", "c", {"a": stream_id(1)}, lost={"a": 2})
    end = begun.after([EntryRange("a", stream_id(1), stream_id(4), 3, True)], "t").with_lost({"a": 1, "b": 4})
    assert end.lost == {"a": 3, "b": 4}
    assert end.without(["a"]).lost == {"a": 3, "b": 4}  # a stream that is gone has lost what it has lost


def test_a_batch_that_leaves_others_entries_behind_begins_above_them() -> None:
    end = Offset("g", "c", {"a": stream_id(1)}).after([EntryRange("a", stream_id(3), stream_id(4), 3, True)], "t")
    assert end.shares["a"] == Share(3, True, stream_id(3), begun=stream_id(1))
    assert end.token == "t"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"format": 1},
        {**FORMAT_1, "format": "1"},
        {**FORMAT_1, "format": 0},
        {**FORMAT_1, "streams": {"a": "x"}},
        {**FORMAT_1, "batch": {"flights": {"count": 3}}},
        {**FORMAT_1, "counts": {"flights": 7}},
        [],
        "1-0",
    ],
)
def test_another_offset_is_a_named_error(value: Any) -> None:
    with pytest.raises(OffsetError, match="RSTREAM_OFFSET"):
        Offset.from_json(value)
