"""Names in Spark's SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name in quotes, as an identifier of Spark's SQL."""
    return f"`{name.replace('`', '``')}`"
