"""Spark's Arrow schema of columns, with timestamps in UTC. Since 4.2, Spark requires the time zone as an argument."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_TIMEZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(columns: StructType) -> pa.Schema:
    """Return the columns as an Arrow schema. Raises PySparkTypeError for a type that Spark does not pass to Python."""
    return to_arrow_schema(columns, **_TIMEZONE)
