"""Spark's Arrow schema of columns, moments in UTC: since 4.2 it asks for the time zone, before it was always UTC."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_ASKED: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(columns: StructType) -> pa.Schema:
    """The columns as Arrow has them. Raises PySparkTypeError for a type that Spark does not hand to Python."""
    return to_arrow_schema(columns, **_ASKED)
