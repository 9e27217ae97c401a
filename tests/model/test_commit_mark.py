"""Commit mark: what a value says, and values of other versions."""

from __future__ import annotations

import pytest

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import StreamId

FIVE = StreamId(5, 0)
VALUES = {
    "5-0 12.5f1c9a0be37d": Mark(FIVE, 12, "5f1c9a0be37d"),
    "5-0 0.37": Mark.at_begin(FIVE, 37),
    "5-0 0.unknown": Mark.at_begin(FIVE, None),
    "5-0 0.seek": Mark(FIVE, 0, "seek"),
    "5-0 3.noAck": Mark(FIVE, 3, "noAck"),
}


@pytest.mark.parametrize("value", list(VALUES))
def test_a_mark_that_was_read_is_written_unchanged(value: str) -> None:
    assert Mark.parse(value.encode()) == VALUES[value]
    assert str(VALUES[value]) == value


@pytest.mark.parametrize(
    "value", [None, b"", b"noAck", b"soon", b"5-0", b"5-0 held", b"5-0 12", b"\xff-0 1.a", b"5-0  1.a", b"5-0 x.a"]
)
def test_a_value_that_this_version_does_not_know_is_none(value: bytes | None) -> None:
    assert Mark.parse(value) is None


def test_a_mark_tells_how_many_entries_were_added_before_a_query_begins() -> None:
    assert VALUES["5-0 0.37"].read_at_begin == 37
    assert VALUES["5-0 0.unknown"].read_at_begin is None
    assert Mark(FIVE, 3, "37").read_at_begin is None  # a batch was committed, and its token happens to be a number


def test_a_mark_tells_who_has_set_it() -> None:
    assert [value for value, mark in VALUES.items() if mark.is_seek] == ["5-0 0.seek"]
    assert [value for value, mark in VALUES.items() if mark.no_ack] == ["5-0 3.noAck"]
