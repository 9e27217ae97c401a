"""Limits of a streaming source per trigger. Spark passes them to a Python source since 4.2.

Before, Spark only asks for the latest offset (batch_starts.py), and the source limits itself. Then these classes take
the place of Spark's. An engine that runs the source has its own ones (running_pyspark.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams.connector.spark.running_pyspark import running_module

_MODULE = running_module("sql.streaming.datasource")
HAS_READ_LIMITS = _MODULE is not None

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
elif _MODULE is not None:
    ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow = (
        _MODULE.ReadAllAvailable, _MODULE.ReadLimit, _MODULE.ReadMaxRows, _MODULE.SupportsTriggerAvailableNow,
    )  # fmt: skip
else:

    class ReadLimit:
        """Any limit."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    class ReadMaxRows(ReadLimit):
        """Maximum number of rows."""

        def __init__(self, max_rows):
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:
        """A source that can prepare for a run that ends with the entries available now."""


__all__ = ["HAS_READ_LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]
