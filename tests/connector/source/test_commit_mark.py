"""Commit mark: what a value says, and values of other versions."""

from __future__ import annotations

import pytest

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.commit_mark import Mark, checkpoint_of, next_token, without_pending_list

FIVE = StreamId(5, 0)
VALUES = {
    "5-0 12.5f1c9a0be37d": Mark(FIVE, 12, "5f1c9a0be37d"),
    "5-0 0.37": Mark.at_begin(FIVE, 37),
    "5-0 0.unknown": Mark.at_begin(FIVE, None),
    "5-0 0.seek": Mark(FIVE, 0, "seek"),
    "5-0 3.noAck": Mark(FIVE, 3, "noAck"),
    "5-0 12.5f1c9a0b-e37d41aa": Mark(FIVE, 12, "5f1c9a0b-e37d41aa"),
    "5-0 12.5f1c9a0b-noAck": Mark(FIVE, 12, without_pending_list("5f1c9a0b-e37d41aa")),
    "5-0 0.5f1c9a0b-first": Mark.of_first_batch(FIVE, "5f1c9a0b-e37d41aa"),
}


@pytest.mark.parametrize("value", list(VALUES))
def test_a_mark_that_was_read_is_written_unchanged(value: str) -> None:
    assert Mark.parse(value.encode()) == VALUES[value]
    assert str(VALUES[value]) == value


NO_MARK = (
    *(b"", b"noAck", b"soon", b"5-0", b"5-0 held", b"5-0 12", b"\xff-0 1.a", b"5-0  1.a", b"5-0 x.a"),
    b"5-0 1.a newer",
)


@pytest.mark.parametrize("value", [None, *NO_MARK])
def test_a_value_that_this_version_does_not_know_is_none(value: bytes | None) -> None:
    assert Mark.parse(value) is None


def test_a_mark_tells_how_many_entries_were_added_before_a_query_begins() -> None:
    assert VALUES["5-0 0.37"].read_at_begin == 37
    assert VALUES["5-0 0.unknown"].read_at_begin is None
    assert Mark(FIVE, 3, "37").read_at_begin is None  # a batch was committed, and its token happens to be a number


def test_a_mark_tells_who_has_set_it() -> None:
    assert [value for value, mark in VALUES.items() if mark.is_seek] == ["5-0 0.seek"]
    assert [value for value, mark in VALUES.items() if not mark.has_pending_list] == [
        "5-0 3.noAck",
        "5-0 12.5f1c9a0b-noAck",
    ]
    assert [value for value, mark in VALUES.items() if mark.is_begin] == ["5-0 0.37", "5-0 0.unknown"]


def test_a_mark_tells_of_which_checkpoint_it_is() -> None:
    assert {mark.checkpoint for value, mark in VALUES.items() if "-" in value[3:]} == {"5f1c9a0b"}
    assert {mark.checkpoint for value, mark in VALUES.items() if "-" not in value[3:]} == {""}


def test_all_tokens_of_a_checkpoint_name_it_and_no_other_checkpoint_does() -> None:
    first, other = next_token(""), next_token("")
    second = next_token(first)
    assert checkpoint_of(first) == checkpoint_of(second) != checkpoint_of(other)
    assert len({first, second, other}) == 3
    assert checkpoint_of(next_token("5f1c9a0be37d")) not in ("", "5f1c9a0be37d")
