"""Whether this Python has a Spark at all: the package does not bring one, because on a cluster Spark is there."""

from __future__ import annotations

from importlib.util import find_spec

from spark_streams.errors import UnsupportedError

REMEDY = "pip install 'spark-streams[spark]', or run this with a Spark's own Python (spark-submit)"


def check_for_spark(what: str) -> None:
    """what: the name that was asked for. Raises UnsupportedError where there is no pyspark."""
    if find_spec("pyspark") is None:
        raise UnsupportedError(f"{what} needs Spark, and this Python has no pyspark: {REMEDY}")
