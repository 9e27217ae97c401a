"""A comparison of a value within a JSON text: `$.amount > 100`, `$.items[*].sku = "a-1"`, `$ >= 5`. Pure.

    path        $ with .name, ["name"], [0], [*] (any element or value)
    operator    = != < <= > >= ~ (contains)
    value       as in JSON: 100, -0.5, "text", true, false, null

Numbers are compared digit by digit, as decimals: a JSONPath library compares them as floats, and is slower.
"""

from __future__ import annotations

import json
import math
import operator
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import OptionError

LONGEST = 1 << 20  # bytes of a value that is compared: a value of JSON takes many times its bytes of memory
MOST_STEPS = 100
_BETWEEN_CLOCKS = 1_000  # values between two readings of the clock
_STEP = re.compile(r"""\.([^\s.\[\]"'=!<>~]+)|\[("(?:[^"\\]|\\.)*"|[0-9]{1,9}|\*)\]""")
_REST = re.compile(r"\s*(!=|<=|>=|==?|<|>|~)\s*(.+?)\s*", re.DOTALL)
_OPERATORS: dict[str, Callable[[Json, Json], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": operator.contains,
}
_Step = str | int | None  # None: any


@dataclass(frozen=True)
class JsonFilter:
    """steps: from `$` to the values; operator, operand: what one of them is compared with."""

    steps: tuple[_Step, ...]
    operator: str
    operand: Json

    @classmethod
    def parse(cls, text: str) -> JsonFilter:
        """Raises OptionError."""
        plain, steps = text.strip(), list[_Step]()
        place = 1
        while match := _STEP.match(plain, place):
            steps.append(_step(match))
            place = match.end()
            if len(steps) > MOST_STEPS:
                _refuse(text, f"its path has more than {MOST_STEPS} steps")
        rest = _REST.fullmatch(plain, place)
        if not plain.startswith("$") or rest is None:
            _refuse(text, "it is not a path, an operator and a value")
        sign, operand = rest[1], _operand(text, rest[2])
        if sign == "~" and not isinstance(operand, str):
            _refuse(text, "~ needs a text in double quotes")
        if sign[0] in "<>" and not isinstance(operand, str | Decimal):
            _refuse(text, f"{sign} needs a number, or a text in double quotes")
        return cls(tuple(steps), sign, operand)

    def matches(self, value: bytes, until: float = math.inf) -> bool | None:
        """Whether one of the values at the path compares so; None if the value is no JSON. Values of different types
        are not equal, and have no order. Raises TimeoutError after `until` (time.monotonic)."""
        try:
            found: list[Json] = [_parsed(value.decode())]
        except (ValueError, InvalidOperation, RecursionError):
            return None
        for step in self.steps:
            found = _children(found, step, until)
        compare, kind = _OPERATORS[self.operator], type(self.operand)
        return any(compare(one, self.operand) if type(one) is kind else self.operator == "!=" for one in found)


def _parsed(text: str) -> Json:
    return json.loads(text, parse_int=Decimal, parse_float=_number, parse_constant=_no_number)


def _number(text: str) -> Decimal:
    """Return a number; beyond the exponents of decimals the infinity or the least number of its sign."""
    try:
        return Decimal(text)
    except InvalidOperation:
        mantissa, _, exponent = text.lower().partition("e")
        unit = "1e-999999999999999999" if exponent.startswith("-") else "Infinity"
        return Decimal(f"-{unit}" if mantissa.startswith("-") else unit) if mantissa.strip("-0.") else Decimal(0)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")


def _step(match: re.Match[str]) -> _Step:
    inner = match[2]
    if inner is None:
        return match[1]
    return None if inner == "*" else json.loads(inner, strict=False) if inner[0] == '"' else int(inner)


def _operand(text: str, word: str) -> Json:
    try:
        operand = _parsed(word)
    except (ValueError, InvalidOperation, RecursionError):
        _refuse(text, f"{word[:50]!r} is not JSON; write a text in double quotes")
    return operand if not isinstance(operand, list | dict) else _refuse(text, "the value is a list or an object")


def _children(values: list[Json], step: _Step, until: float) -> list[Json]:
    children: list[Json] = []
    for number, value in enumerate(values):
        if number % _BETWEEN_CLOCKS == 0 and time.monotonic() > until:
            raise TimeoutError
        if step is None and isinstance(value, list | dict):
            children += value.values() if isinstance(value, dict) else value
        elif isinstance(step, str) and isinstance(value, dict):
            children += [value[step]] if step in value else []
        elif isinstance(step, int) and isinstance(value, list):
            children += value[step : step + 1]
    return children


def _refuse(text: str, why: str) -> NoReturn:
    raise OptionError(
        f"{text[:100]!r} is not a comparison of JSON: {why}. "
        'Examples: $.amount > 100, $.items[*].sku = "a-1", $.name ~ "ann"'
    )
