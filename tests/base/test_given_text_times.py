"""A number becomes a time by integers: datetime.fromtimestamp takes a float, and loses microseconds."""

from __future__ import annotations

import datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import spark_streams
from spark_streams.base.given_text import from_milliseconds, moment

ROOT = Path(spark_streams.__file__).parent
LAST = 253_402_300_799_999


@given(st.integers(-62_135_596_800_000, LAST))
def test_a_number_of_milliseconds_is_exact(number: int) -> None:
    when = from_milliseconds(number)
    assert when.tzinfo is datetime.UTC
    assert when.microsecond == number % 1000 * 1000
    if number >= 0:
        assert moment(when.isoformat()) == number


def test_the_last_millisecond() -> None:
    assert from_milliseconds(LAST).isoformat() == "9999-12-31T23:59:59.999000+00:00"


def test_no_other_place_makes_a_time_of_a_float() -> None:
    assert not [path.name for path in ROOT.rglob("*.py") if "fromtimestamp(" in path.read_text(encoding="utf-8")]
