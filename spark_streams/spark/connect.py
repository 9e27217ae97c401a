"""Telling what is of Spark Connect, whose client has a class of its own for each of Spark's."""

from __future__ import annotations


def is_of_connect(thing: object) -> bool:
    """Whether this session, query or writer is of Spark Connect. Needs none of its packages."""
    return type(thing).__module__.startswith("pyspark.sql.connect.")
