"""Failures that are documented, and are none of an entry: the soak counts them, and continues.

Each is a row of docs/reference/unnoticed.md. A pattern is as narrow as its row: what the row does not say is a failure.
What is true of entries needs no pattern: the powers record which, with a reason (reasons.py)."""

from __future__ import annotations

import re

# Pattern of the failure's kind → name of the limit.
KNOWN: dict[str, str] = {}


def reason_of(kind: str) -> str | None:
    """Return the name of the limit that explains this kind of failure, or None."""
    return next((name for pattern, name in KNOWN.items() if re.search(pattern, kind)), None)
