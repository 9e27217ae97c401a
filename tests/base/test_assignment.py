"""NAME=VALUE: each name and each value can be written, and reading it takes linear time."""

from __future__ import annotations

import itertools

import pytest

from spark_streams.base.assignment import assignment, parse_assignment


def test_each_name_and_value_is_read_as_it_was_written() -> None:
    names = ["".join(parts) for length in range(6) for parts in itertools.product("a=\\\n", repeat=length)]
    for name, value in itertools.product(names, ("", "b", "=", "\\=", "\\")):
        assert parse_assignment(assignment(name, value)) == (name, value)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("a=b=c", ("a", "b=c")),
        (r"a\=b=c", ("a=b", "c")),
        (r"a\\=b", ("a\\", "b")),
        (r"a\b=c", (r"a\b", "c")),
        ("=x", ("", "x")),
        ("abc", None),
        (r"a\=b", None),
        ("\\" * 100_000, None),
        ("\\" * 100_001 + "=", None),
        ("a" * 100_000, None),
    ],
)
def test_texts_of_a_person(text: str, pair: tuple[str, str] | None) -> None:
    assert parse_assignment(text) == pair
