"""What one value may cost: a value beyond a bound has a reason, and never ends a query. docs/guide/schemas.md has them
in one table.
"""

from __future__ import annotations

import threading

from spark_streams.connector.schemas.reasons import BAD_VALUE, UnreadableError

DEEPEST = 100  # levels of a value
MOST_DIGITS = 1_000  # characters of a number in JSON
MOST_UNEVALUATED = 1_000  # members or items that unevaluatedProperties or unevaluatedItems looks at
_FIRST_STEPS = 5_000
_STEPS_OF_A_BYTE = 10


class Steps(threading.local):
    """Counts the steps that a value takes in this thread: in proportion to its bytes."""

    left = 0

    def begin(self, size: int) -> None:
        """Begin a value of this many bytes."""
        self.left = _FIRST_STEPS + _STEPS_OF_A_BYTE * size

    def take(self, count: int = 1) -> None:
        """Raise UnreadableError if the value has taken all its steps."""
        self.left -= count
        if self.left < 0:
            raise UnreadableError(BAD_VALUE)
