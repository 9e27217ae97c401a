"""Commit mark: what a value says, and values of other versions."""

from __future__ import annotations

import pytest

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import StreamId

FIVE, TWO, NINE = StreamId(5, 0), StreamId(2, 1), StreamId(9, 0)
VALUES = {
    "5-0": Mark(FIVE),
    "5-0 begun": Mark(FIVE, begun=True),
    "5-0 begun noAck": Mark(FIVE, no_ack=True, begun=True),
    "5-0 begun holds": Mark(FIVE, FIVE, begun=True),
    "5-0 again=9-0": Mark(FIVE, committed_before=NINE),
    "5-0 again=9-0 noAck": Mark(FIVE, no_ack=True, committed_before=NINE),
    "5-0 again=9-0 holds above=2-1": Mark(FIVE, TWO, committed_before=NINE),
    "5-0 holds": Mark(FIVE, FIVE),
    "5-0 holds noAck": Mark(FIVE, FIVE, no_ack=True),
    "5-0 holds above=2-1": Mark(FIVE, TWO),
}


@pytest.mark.parametrize("value", list(VALUES))
def test_a_mark_that_was_read_is_written_unchanged(value: str) -> None:
    assert Mark.parse(value.encode()) == VALUES[value]
    assert str(VALUES[value]) == value
    assert VALUES[value].holds == ("holds" in value)


@pytest.mark.parametrize(
    ("value", "mark"),
    [(b"5-0 holds given=9-0", Mark(FIVE, FIVE)), (b"5-0 holds above=2-1 given=9-0", Mark(FIVE, TWO))],
)
def test_what_earlier_versions_wrote_besides_is_accepted(value: bytes, mark: Mark) -> None:
    assert Mark.parse(value) == mark


@pytest.mark.parametrize("value", [None, b"", b"holds", b"soon holds", b"5-0 held", b"5-0 holds until=9-0", b"\xff-0",
                                   b"5-0 holds given=x", b"5-0  holds", b"5-0 holds ", b"5-0 holds begun",
                                   b"5-0 again=x", b"5-0 holds again=9-0"])  # fmt: skip
def test_a_value_that_this_version_does_not_know_is_none(value: bytes | None) -> None:
    """Whoever trims refuses such a key by name (retention.readers)."""
    assert Mark.parse(value) is None


def test_a_mark_shows_how_far_the_query_has_come_although_its_last_batch_is_run_again() -> None:
    assert Mark(FIVE, committed_before=NINE).reached == NINE
    assert Mark(FIVE).reached == FIVE
