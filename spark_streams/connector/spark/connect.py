"""Detection of Spark Connect, whose client has its own class for each class of Spark."""

from __future__ import annotations


def is_of_connect(spark_object: object) -> bool:
    """Return whether a session, query or writer belongs to Spark Connect. Imports none of its packages."""
    return type(spark_object).__module__.startswith("pyspark.sql.connect.")
