"""The offset in Spark's log."""

import json
from typing import Any

import pytest

from spark_streams.errors import OffsetError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.source.offsets import Offset


def test_an_offset_comes_back_from_the_log() -> None:
    offset = Offset({"b": StreamId(5, 1), "a": StreamId(2**64 - 1, 0)})
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert list(offset.to_json()["streams"]) == ["a", "b"]


def test_a_stream_that_is_not_named_stands_at_the_start() -> None:
    assert Offset({})["a"] == MIN_ID


def test_moving_leaves_the_others_and_the_original() -> None:
    offset = Offset({"a": StreamId(1, 0), "b": StreamId(2, 0)})
    assert offset.moved({"b": StreamId(3, 0)}).to_json()["streams"] == {"a": "1-0", "b": "3-0"}
    assert offset["b"] == StreamId(2, 0)


def test_the_written_form_of_version_1_is_read_for_ever() -> None:
    kept = {"version": 1, "streams": {"flights": "1795150168606-197"}}
    assert Offset.from_json(kept)["flights"] == StreamId(1795150168606, 197)


@pytest.mark.parametrize(
    "value", [{}, {"version": 2, "streams": {}}, {"version": 1}, {"version": 1, "streams": {"a": "x"}}, [], "1-0"]
)
def test_another_offset_is_a_named_error(value: Any) -> None:
    with pytest.raises(OffsetError, match="RSTREAM_OFFSET"):
        Offset.from_json(value)
