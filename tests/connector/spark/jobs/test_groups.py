"""[aggregate] groups by columns of any name."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_streams.jobs.job import Job
from spark_streams.jobs.parts.aggregation import Groups

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["http.method", "a`b", "plain"])
def test_a_group_and_an_event_time_have_any_name(spark: SparkSession, name: str) -> None:
    """Also beside a window and a watermark."""
    quoted = f"`{name.replace('`', '``')}`"
    config = {
        "columns": {name: "STRING", f"{name} at": "TIMESTAMP"},
        "aggregate": {
            "keys": [name], "values": {f"{name} rows": "count(*)"},
            "event_time": f"{name} at", "window": "1 minute", "watermark": "1 minute",
        },
    }  # fmt: skip
    groups = Groups(Job("aggregate", config, Console(quiet=True)))
    rows = spark.sql(f"SELECT 'x' AS {quoted}, TIMESTAMP'2026-01-01 10:00:01' AS {quoted[:-1]} at`")
    (row,) = groups.aggregate(rows).collect()
    assert (row[name], row[f"{name} rows"]) == ("x", 1)
