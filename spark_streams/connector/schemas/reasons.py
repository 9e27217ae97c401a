"""Why a value could not be decoded, and what it may cost.

The reasons are names that stay the same, for conditions and dead letters.
"""

from __future__ import annotations

import threading
from decimal import Context, Inexact, InvalidOperation, Overflow
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from spark_streams.base.extras import lacks
from spark_streams.connector.errors import UnsupportedError

BAD_FRAMING = "bad-framing"  # the magic byte, the ID or the message indexes are not there
UNKNOWN_SCHEMA = "unknown-schema"  # the registry has no schema of this ID
OTHER_SCHEMA = "other-schema"  # the value's schema cannot be read as the reader's, or is of another format or message
BAD_VALUE = "bad-value"  # the bytes are no value of the schema, or the value does not fit the struct


class UnreadableError(Exception):
    """A value cannot be decoded. reason: one of the names above."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def library(name: str) -> Any:
    """Return a package of the extra `schemas`, which has no types here. Raises UnsupportedError."""
    package = name.partition(".")[0]
    try:
        found = find_spec(name) is not None
    except ModuleNotFoundError:  # the package above it
        found = False
    if not found:
        package = {"google": "protobuf", "re2": "google-re2"}.get(package, package)
        raise UnsupportedError(f"{lacks('decode', package)}, here and where tasks run")
    return import_module(name)


# -- what one value may cost -------------------------------------------------------------------------------------------

# A value beyond a bound has a reason, and never ends a query. docs/guide/schemas.md has the bounds in one table.

DEEPEST = 100  # levels of a value
MOST_DIGITS = 1_000  # characters of a number in JSON
MOST_UNEVALUATED = 1_000  # members or items that unevaluatedProperties or unevaluatedItems looks at
FIRST_STEPS = 5_000
STEPS_OF_A_BYTE = 10
FIELDS_OF_A_BYTE, UNSET_OF_A_FIELD = 3, 4  # of Protobuf. Fields that are not set are copied: so many count as one


class StepBudget(threading.local):
    """Counts the steps that a value takes in this thread."""

    left = 0

    def begin(self, of_bytes: int) -> None:
        """of_bytes: how many steps a value has for its bytes."""
        self.left = FIRST_STEPS + of_bytes

    def take(self, count: int = 1) -> None:
        """Raise UnreadableError if the value has taken all its steps."""
        self.left -= count
        if self.left < 0:
            raise UnreadableError(BAD_VALUE)


# Arithmetic of decimals that raises an error instead of rounding.
EXACT = Context(prec=76, traps=[Inexact, InvalidOperation, Overflow])
