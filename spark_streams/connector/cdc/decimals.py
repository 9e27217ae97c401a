"""Decimal numbers without rounding: from digits, with or without an exponent, and from bytes.

Bytes are a whole number, big-endian, in two's complement, of any length. They become digits, and their scale becomes an
exponent: 1250 with scale 2 is `1250E-2`. A number that does not fit its type without rounding is null.

Arguments and results are SQL expressions.
"""

from __future__ import annotations

from pyspark.sql.types import DecimalType

from spark_streams.connector.cdc.sql import cast, let

# Anyone may write a text, and a cast takes a time that grows with the square of its digits.
MOST_CHARACTERS = 1_000
# Possessive: no digit is tried twice.
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_NUMBER = "^[+-]?(?=[.]?[0-9])[0-9]*+(?:[.][0-9]*+)?(?:[eE][+-]?[0-9]{1,4})?$"
_PARTS = "^([+-]?)([0-9]*+)(?:[.]([0-9]*+))?(?:[eE]([+-]?[0-9]{1,4}))?$"
_MOST_ZEROS = 80  # that an exponent adds: more than a decimal type holds


def exact_decimal(text: str, target: DecimalType) -> str:
    """Return the number that the text means, null if it is none, or if the type cannot hold all its digits, or if the
    text has more than MOST_CHARACTERS."""
    plain = f"^[+-]?(?=[.]?[0-9])[0-9]*+(?:[.][0-9]{{0,{target.scale}}}+0*+)?$"
    # White space around a number is ignored, as in Spark's cast.
    number = (
        f"CASE WHEN length(digits) > {MOST_CHARACTERS} THEN NULL "
        f"WHEN rlike(digits, '{plain}') THEN {cast('digits', target)} "
        f"WHEN rlike(digits, '{_NUMBER}') THEN {_by_parts('digits', target)} END"
    )
    return let("digits", f"trim({text})", number)


def scaled(unscaled: str, scale: str) -> str:
    """Return a whole number's text with its scale as an exponent."""
    return f"concat({unscaled}, 'E', cast(try_subtract(0, try_cast({scale} AS INT)) AS STRING))"


def is_ambiguous(text: str) -> str:
    """Whether a text may mean a number by its digits, and by its bytes in base64."""
    return f"(length({text}) <= {MOST_CHARACTERS} AND rlike({text}, '{_NUMBER}') AND rlike({text}, '{_BASE64}'))"


def whole_number(base64: str) -> str:
    """Return the digits of a whole number that is written as bytes; null if it has more than 38."""
    shortest = f"regexp_replace(hex(try_to_binary({base64}, 'base64')), '^(?:00)+(?=[0-7])|^(?:FF)+(?=[89A-F])', '')"
    # The complement of a negative number is its size less one, so no sum overflows.
    complement = _unsigned("translate(bytes, '0123456789ABCDEF', 'FEDCBA9876543210')")
    negative = f"concat('-', cast(try_add({complement}, cast(1 AS DECIMAL(38, 0))) AS STRING))"
    number = f"CASE WHEN bytes >= '8' THEN {negative} ELSE cast({_unsigned('bytes')} AS STRING) END"
    return let("bytes", shortest, f"CASE WHEN length(bytes) BETWEEN 2 AND 32 THEN {number} END")


def _unsigned(hexadecimal: str) -> str:
    """Return a number of at most 32 hexadecimal digits as DECIMAL(38,0), null if it has more than 38 digits."""
    high, low = (
        f"try_cast(conv({half}(lpad({hexadecimal}, 32, '0'), 16), 16, 10) AS DECIMAL(20, 0))"
        for half in ("left", "right")
    )
    return f"try_cast(try_add(try_multiply({high}, 18446744073709551616BD), {low}) AS DECIMAL(38, 0))"


def _by_parts(text: str, target: DecimalType) -> str:
    """Return a number with an exponent, or with zeros behind the last place of the type."""
    sign, integer, fraction, exponent = (f"regexp_extract({text}, '{_PARTS}', {group})" for group in range(1, 5))
    # excess: how many digits are behind the last place; if negative, how many zeros are missing.
    excess = f"length({fraction}) - coalesce(try_cast({exponent} AS INT), 0) - {target.scale}"
    parts = f"struct({sign} AS sign, concat({integer}, {fraction}) AS digits, {excess} AS excess)"
    all_digits = f"concat(parts.digits, repeat('0', least(-parts.excess, {_MOST_ZEROS})))"
    first_digits = "left(parts.digits, length(parts.digits) - parts.excess)"
    kept = f"CASE WHEN parts.excess <= 0 THEN {all_digits} ELSE {first_digits} END"
    is_exact = "(parts.excess <= 0 OR rlike(right(parts.digits, parts.excess), '^0*$'))"
    whole_digits = f"lpad(kept, greatest(length(kept), {target.scale + 1}), '0')"
    number = f"regexp_replace({whole_digits}, '([0-9]{{{target.scale}}})$', '.$1')" if target.scale else whole_digits
    shifted = let("kept", f"ltrim('0', {kept})", cast(f"concat(parts.sign, {number})", target))
    return let("parts", parts, f"CASE WHEN {is_exact} THEN {shifted} END")
