"""The bound of the streams that a pattern selects."""

from __future__ import annotations

from spark_streams.connector.wire.scan import LONGEST_NAME, bounded


def test_all_streams_are_selected_up_to_the_bound() -> None:
    """Sorted, and without asking which are used."""
    found = bounded(["b", "a", "é"], lambda names: [str(1 // 0)], most=3)
    assert (found.streams, found.left_out) == (["a", "b", "é"], "")


def test_a_name_of_more_than_1024_bytes_is_no_stream_of_a_pattern() -> None:
    """Bytes count, and not characters."""
    fits, long = "é" * (LONGEST_NAME // 2), "é" * (LONGEST_NAME // 2) + "x"
    found = bounded([long, fits, "a"])
    assert (found.streams, found.too_long) == (["a", fits], 1)
    assert found.left_out == "1 with names of more than 1,024 bytes"
    assert bounded([long.encode(), b"a"]).streams == [b"a"]


def test_streams_that_are_used_stay_and_others_follow_by_their_names() -> None:
    found = bounded(["a", "b", "c", "y", "z"], lambda names: {"z", "missing"}, most=3)
    assert (found.streams, found.too_many) == (["a", "b", "z"], 2)
    assert found.left_out == "2 beyond the first 3"
