"""Check that this Python has pyspark. The package does not require it, because a cluster provides its own Spark."""

from __future__ import annotations

from importlib.util import find_spec

from spark_streams.errors import UnsupportedError

REMEDY = "pip install 'spark-streams[spark]', or run this with a Spark's own Python (spark-submit)"


def check_for_spark(name: str) -> None:
    """Raise UnsupportedError if there is no pyspark. name: of the function that needs it."""
    if find_spec("pyspark") is None:
        raise UnsupportedError(f"{name} needs Spark, and this Python has no pyspark: {REMEDY}")
