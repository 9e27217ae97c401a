"""Commit mark: what a value says, and values of other versions."""

from __future__ import annotations

import pytest

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import StreamId

FIVE, NINE = StreamId(5, 0), StreamId(9, 0)
VALUES = {
    "5-0": Mark(FIVE),
    "5-0 begun": Mark(FIVE, begun=True),
    "5-0 begun noAck": Mark(FIVE, no_ack=True, begun=True),
    "5-0 again=9-0": Mark(FIVE, committed_before=NINE),
    "5-0 again=9-0 noAck": Mark(FIVE, no_ack=True, committed_before=NINE),
}


@pytest.mark.parametrize("value", list(VALUES))
def test_a_mark_that_was_read_is_written_unchanged(value: str) -> None:
    assert Mark.parse(value.encode()) == VALUES[value]
    assert str(VALUES[value]) == value


@pytest.mark.parametrize("value", [None, b"", b"noAck", b"soon", b"5-0 held", b"5-0 holds", b"\xff-0", b"5-0  noAck",
                                   b"5-0 noAck ", b"5-0 noAck begun", b"5-0 again=x"])  # fmt: skip
def test_a_value_that_this_version_does_not_know_is_none(value: bytes | None) -> None:
    assert Mark.parse(value) is None


def test_a_mark_shows_how_far_the_query_has_come_although_its_last_batch_is_run_again() -> None:
    assert Mark(FIVE, committed_before=NINE).reached == NINE
    assert Mark(FIVE).reached == FIVE
