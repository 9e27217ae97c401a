"""How much a streaming source may read at a trigger. Spark tells a Python source since 4.2; before, it asks for the
latest offset and no more (batch_starts.py), and the limit is the source's own: these stand in for Spark's classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

HAS_READ_LIMITS = True

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:
        HAS_READ_LIMITS = False

        class ReadLimit:
            """Any limit."""

        class ReadAllAvailable(ReadLimit):
            """None."""

        class ReadMaxRows(ReadLimit):
            """So many rows."""

            def __init__(self, max_rows):
                self.max_rows = max_rows

        class SupportsTriggerAvailableNow:
            """A source that is told that the run ends at what is there now."""


__all__ = ["HAS_READ_LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]
