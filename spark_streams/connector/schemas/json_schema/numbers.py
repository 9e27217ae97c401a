"""Numbers of JSON, exactly, whatever their number of digits and their exponent. Pure."""

from __future__ import annotations

import json
from decimal import Decimal

from spark_streams.base.untyped import Json


def is_number(_: object, value: Json) -> bool:
    return type(value) in (int, Decimal)


def is_integer(_: object, value: Json) -> bool:
    """Return whether a number is whole: 1.0 and 1e300, too."""
    if type(value) is not Decimal:
        return type(value) is int
    _, digits, exponent = value.as_tuple()
    return isinstance(exponent, int) and (exponent >= 0 or not any(digits[exponent:]))


def is_multiple(value: Decimal, of: Decimal) -> bool:
    """Return whether a number is a multiple of another, which is not 0. Exact: no power of ten is written out that is
    longer than the number itself."""
    number, unit = _whole(value), _whole(of)
    shift = _exponent(value) - _exponent(of)
    if number == 0:
        return True
    if shift >= 0:
        return bool(number * pow(10, shift, unit) % unit == 0)
    if -shift > len(str(number)):
        return False
    return bool(number % (unit * 10**-shift) == 0)


def canonical(value: Json) -> str:
    """Return a text that is the same for values that JSON Schema calls equal: 1, 1.0 and 10e-1."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{canonical(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if type(value) not in (int, Decimal):
        return json.dumps(value)
    sign, digits, exponent = Decimal(value).as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return f"{'-' * sign}{kept}e{int(exponent) + len(text) - len(kept)}" if kept else "0"


def _whole(value: Decimal) -> int:
    digits = "".join(map(str, value.as_tuple().digits))
    return int(digits)


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # no infinity, which JSON does not have
    return exponent
