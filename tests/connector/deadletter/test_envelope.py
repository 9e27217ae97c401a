"""The envelope: one definition for all letters, opened without doubt, carried over when an entry dies again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.deadletter.envelope import (
    FIELDS,
    MARK,
    NAMES,
    RedriveMark,
    dead_letter_fields,
    is_dead_letter,
    open_envelope,
    split_previous,
)

TOLD = {"stream": "s", "id": "1-0", "group": "g", "reason": "decode", "first-failed": "t1", "last-failed": "t1"}


def test_a_dead_letter_is_the_entry_and_every_name_of_the_envelope_in_order() -> None:
    words = dead_letter_fields([b"n", b"\xff\r\n", b"", b""], TOLD)
    assert words[:4] == [b"n", b"\xff\r\n", b"", b""]
    assert tuple(words[4::2]) == FIELDS
    fields, envelope = open_envelope(words)
    assert (fields, tuple(envelope)) == ([b"n", b"\xff\r\n", b"", b""], NAMES)
    assert envelope == {**dict.fromkeys(NAMES, ""), **TOLD, "redrives": "0"}


def test_a_redriven_entry_that_dies_again_keeps_its_first_failure_its_deliveries_and_its_dead_letter_id() -> None:
    mark = RedriveMark(2, "t0", "dead letters/5-1")
    words = dead_letter_fields([b"n", b"1", MARK, bytes(mark)], {**TOLD, "redrives": "0"})
    fields, envelope = open_envelope(words)
    assert fields == [b"n", b"1"]
    assert (envelope["redrives"], envelope["previous"]) == ("2", "dead letters/5-1")
    assert (envelope["first-failed"], envelope["last-failed"]) == ("t0", "t1")


def test_a_field_that_only_looks_like_a_mark_is_the_users_own() -> None:
    for value in (b"", b"x y z", b"1", b"1 2"):
        entry = [b"n", b"1", MARK, value]
        assert open_envelope(dead_letter_fields(entry, TOLD))[0] == entry
    before = [MARK, b"1 t s/1-0", b"n", b"1"]
    assert open_envelope(dead_letter_fields(before, TOLD))[0] == before


def test_a_dead_letter_of_a_dead_letter_is_opened_one_at_a_time() -> None:
    inner = dead_letter_fields([b"n", b"1"], TOLD)
    outer = dead_letter_fields(inner, {**TOLD, "stream": "dead"})
    fields, envelope = open_envelope(outer)
    assert (fields, envelope["stream"]) == (inner, "dead")


def test_a_dead_letter_that_becomes_a_dead_letter_keeps_its_past() -> None:
    """Somebody reads dead letters: how often they were sent back must not begin anew, or they go round for ever."""
    inner = dead_letter_fields([b"n", b"1", MARK, bytes(RedriveMark(2, "t0", "dead/5-1"))], TOLD)
    outer = dead_letter_fields(inner, {**TOLD, "stream": "dead", "first-failed": "t2", "last-failed": "t2"})
    fields, envelope = open_envelope(outer)
    assert fields == inner
    assert (envelope["stream"], envelope["redrives"], envelope["previous"]) == ("dead", "2", "dead/5-1")
    assert (envelope["first-failed"], envelope["last-failed"]) == ("t0", "t2")
    sent_back = [*inner, MARK, bytes(RedriveMark(3, "t0", "dead/9-1"))]  # what is said last holds
    assert open_envelope(dead_letter_fields(sent_back, TOLD))[1]["redrives"] == "3"
    partly = [b"n", b"1", b"dl.stream", b"s", b"dl.id", b"1-0", b"dl.redrives", b"7"]  # the user's own fields
    assert open_envelope(dead_letter_fields(partly, TOLD))[1]["redrives"] == "0"


@pytest.mark.parametrize(
    ("fields", "is_one"),
    [
        (dead_letter_fields([b"n", b"1"], TOLD), True),
        (dead_letter_fields([], TOLD), True),
        (dead_letter_fields(dead_letter_fields([b"n", b"1"], TOLD), TOLD), True),
        ([b"n", b"1", *dead_letter_fields([], TOLD)[2:]], False),
        (
            [*dead_letter_fields([b"n", b"1"], TOLD), MARK, bytes(RedriveMark(1, "t", "dead/1-0"))],
            True,
        ),  # sent back, a letter as before
        ([b"n", b"1", MARK, bytes(RedriveMark(1, "t", "dead/1-0"))], False),
        ([b"n", b"1", b"dl.stream", b"s"], False),
        ([b"dl.x", b"1"], False),
        ([], False),
    ],
)
def test_a_dead_letter_is_what_has_the_whole_envelope_behind_it(fields: list[bytes], is_one: bool) -> None:
    assert is_dead_letter(fields) is is_one


def test_an_envelope_of_another_writer_may_lack_names_and_what_is_no_dead_letter_has_none() -> None:
    assert open_envelope([b"n", b"1", b"dl.stream", b"s", b"dl.id", b"1-0"]) == (
        [b"n", b"1"],
        {"stream": "s", "id": "1-0"},
    )
    assert open_envelope([b"dl.id", b"7", b"n", b"1"]) == ([b"dl.id", b"7", b"n", b"1"], {})
    assert open_envelope([]) == ([], {})


def test_a_name_that_the_envelope_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="no speed"):
        dead_letter_fields([b"n", b"1"], {"speed": "1"})


_names = st.one_of(st.sampled_from([*FIELDS, MARK, b"n", b""]), st.binary(max_size=5))


@given(st.lists(st.tuples(_names, st.binary(max_size=5)), max_size=6), st.binary(max_size=8))
def test_any_fields_are_restored(pairs: list[tuple[bytes, bytes]], where: bytes) -> None:
    words = [word for pair in pairs for word in pair]
    mark = RedriveMark(1, "t", f"{where.decode('utf-8', 'surrogateescape')}/1-0")
    assert RedriveMark.parse(bytes(mark)) == mark
    fields, envelope = open_envelope(dead_letter_fields([*words, MARK, bytes(mark)], TOLD))
    assert list(fields) == words
    assert envelope["previous"] == mark.previous


@pytest.mark.parametrize(
    ("previous", "parts"),
    [
        ("dead/7-0 5-0", ("dead/7-0", "5-0")),
        ("dead/7-0", ("dead/7-0", "")),  # of an earlier version
        ("a/1-1 2-2/7-0", ("a/1-1 2-2/7-0", "")),  # a stream's name may hold anything
        ("a/1-1 2-2/7-0 5-18446744073709551615", ("a/1-1 2-2/7-0", "5-18446744073709551615")),
        ("5-0", ("5-0", "")),
        ("", ("", "")),
    ],
)
def test_what_an_entry_was_before_has_its_first_id_at_the_end(previous: str, parts: tuple[str, str]) -> None:
    assert split_previous(previous) == parts
