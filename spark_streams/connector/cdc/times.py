"""Numbers as dates and times, in decimal numbers: no microsecond is lost. A time that Spark cannot represent is null.

Arguments and results are SQL expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pyspark.sql.types import DecimalType

from spark_streams.connector.cdc.decimals import exact_decimal
from spark_streams.connector.cdc.sql import let

Unit = Literal["ms", "us", "ns"]
WHOLE = "^-?[0-9]{1,19}$"
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds: the years 1 to 9999, which Spark and Python can represent
_DAY, _MICROS = 86_400, 1_000_000
_DAYS, _NUMBER = DecimalType(10, 0), DecimalType(28, 9)  # 19 digits before the point, as in 64 bits
_WHOLE_NUMBER = "try_cast(floor(number) AS BIGINT)"
# Spark's `/` is a floating-point number, and its `div` rounds towards 0.
_MICROSECONDS: Mapping[Unit, str] = {
    "ms": "try_cast(floor(number * 1000) AS BIGINT)",
    "us": _WHOLE_NUMBER,
    "ns": let("whole", _WHOLE_NUMBER, "whole div 1000L - CASE WHEN whole % 1000L < 0 THEN 1 ELSE 0 END"),
}


def date(number: str) -> str:
    """Return the day of a number of days since 1970. number: its text."""
    days = f"try_cast({exact_decimal(number, _DAYS)} AS INT)"
    day = f"CASE WHEN days BETWEEN {_FIRST // _DAY} AND {_LAST // _DAY} THEN date_from_unix_date(days) END"
    return let("days", days, day)


def moment(number: str, is_of_unit: Mapping[Unit, str]) -> str:
    """Return the time of a number since 1970, cut off to microseconds; null if no unit is true. number: its text."""
    by_unit = " ".join(f"WHEN {is_true} THEN {_MICROSECONDS[unit]}" for unit, is_true in is_of_unit.items())
    micros = let("number", exact_decimal(number, _NUMBER), f"CASE {by_unit} END")
    first, last = _FIRST * _MICROS, (_LAST + 1) * _MICROS - 1
    return let("micros", micros, f"CASE WHEN micros BETWEEN {first} AND {last} THEN timestamp_micros(micros) END")
