"""The offset in Spark's log."""

import json
from typing import Any

import pytest

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.errors import OffsetError
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.spark.data_source import REPORT


def stream_id(ms: int) -> StreamId:
    return StreamId(ms, 0)


NEW = Range("b", stream_id(3), stream_id(5), 7, 1700)
OLD = Range("a", MIN_ID, stream_id(2), 2, 1700)
OFFSET = Offset(
    "g",
    "c",
    {"b": StreamOffset(stream_id(5), 4, "1f", 7, 9, -1), "a": StreamOffset(StreamId(2**64 - 1, 0), 1, "0e", None, 3)},
    {"b": NEW},
    {"a": (OLD,)},
    {"b": Range("b", MIN_ID, stream_id(3), 3, 1600)},
    frozenset({"a"}),
    "1f",
)


def test_an_offset_is_read_from_the_log() -> None:
    assert Offset.from_json(json.loads(json.dumps(OFFSET.to_json()))) == OFFSET
    assert list(OFFSET.to_json()["streams"]) == ["a", "b"]  # type: ignore[call-overload]


def test_a_stream_that_is_not_named_is_at_its_first_entry() -> None:
    assert Offset("g", "c")["a"] == MIN_ID


def test_the_entries_of_a_batch() -> None:
    assert OFFSET.taken_from == ["a", "b"]
    assert OFFSET.held == 9
    assert OFFSET.ranges("b") == (NEW,)
    assert OFFSET.ranges("a") == (OLD,)
    assert OFFSET.is_of_this_batch("b")
    assert not Offset("g", "c", {"a": StreamOffset(MIN_ID)}).is_of_this_batch("a")


def test_the_mark_of_the_last_batch_of_a_stream() -> None:
    assert OFFSET.at["b"].mark == Mark(stream_id(5), 4, "1f")


def test_an_offset_without_a_stream_has_none_of_its_entries() -> None:
    left = OFFSET.without(["b"])
    assert (left.taken_from, left.streams, left.unacknowledged) == (["a"], ["a"], {})


FORMAT_1 = {
    "format": 1,
    "group": "etl",
    "consumer": "spark",
    "token": "5f1c9a0be37d",
    "streams": {"flights": "1795150168606-197 12.5f1c9a0be37d 7 9 1", "gates": "0-0 0.unknown - 0"},
    "batch": {"flights": "1795150168600-0 1795150168606-197 3 1795150168700"},
    "old": {"flights": ["0-0 1795150168500-0 2 1795150168700"]},
    "owed": {"flights": "1795150168400-0 1795150168600-0 2 1795150168650"},
    "record": "orders",
    "notes": True,
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
    assert offset.to_json() == {**FORMAT_1, "left": ["flights"]}  # any stream may have old entries
    assert offset.left == {"flights", "gates"}
    assert offset.at["flights"] == StreamOffset(StreamId(1795150168606, 197), 12, "5f1c9a0be37d", 7, 9, 1)
    assert offset.at["gates"] == StreamOffset(MIN_ID, 0, "unknown", None, 0)
    assert offset.new["flights"] == Range(
        "flights", StreamId(1795150168600, 0), StreamId(1795150168606, 197), 3, until=1795150168700
    )
    assert (offset.record, offset.notes, offset.has_pending_list) == ("orders", True, False)


def test_what_spark_4_1_keeps_beside_an_offset_is_no_part_of_it() -> None:
    told = {**FORMAT_1, REPORT: {"lost": {"flights": 4}}}
    assert Offset.from_json(told) == Offset.from_json(FORMAT_1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": 2}, "has format 2, and this spark-streams reads format 1"),
        ({"regions": {}}, r"does not know \(regions\)"),
    ],
)
def test_an_offset_of_a_newer_version_is_refused_with_what_to_do(change: dict[str, Any], field: str) -> None:
    with pytest.raises(OffsetError, match=f"{field}.*Install a spark-streams at least as new as the one"):
        Offset.from_json({**FORMAT_1, **change})


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"format": 1},
        {**FORMAT_1, "format": "1"},
        {**FORMAT_1, "format": 0},
        {**FORMAT_1, "streams": {"a": "x"}},
        {**FORMAT_1, "streams": {"a": "1-0 12 7 9"}},
        {**FORMAT_1, "streams": {"a": "1-0 12.f 7 9 1 seen"}},
        {**FORMAT_1, "batch": {"flights": {"count": 3}}},
        {**FORMAT_1, "batch": {"flights": "0-0 1-0 3"}},
        {**FORMAT_1, "old": {"flights": "0-0 1-0 3 0"}},
        [],
        "1-0",
    ],
)
def test_another_offset_is_a_named_error(value: Any) -> None:
    with pytest.raises(OffsetError, match="RSTREAM_OFFSET"):
        Offset.from_json(value)


@pytest.mark.parametrize(
    "change", [{"format": 99}, {"later": 1}, {"history": {}}, {"batch": 1}, {"version": 1}, {"format": "x"}]
)
def test_an_error_shows_the_begin_of_an_offset_of_10_000_streams(change: dict[str, object]) -> None:
    value = {
        "format": 1,
        "group": "g",
        "consumer": "c",
        "streams": {f"orders:{n}": "17-0" for n in range(10_000)},
        "batch": {},
    }
    with pytest.raises(OffsetError, match=r"characters\)") as raised:
        Offset.from_json({**value, **change})
    assert len(str(raised.value)) < 800
