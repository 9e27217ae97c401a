"""Listeners that a test attaches, and that are closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

import spark_streams
from spark_streams.connector.watch.listener import Watch


def attached(spark: SparkSession, **defaults: Any) -> Iterator[Callable[..., Watch]]:
    """Yield a function that attaches a listener: `attach(url, lineage=…)`. defaults: its options if a call does not
    name them."""
    found: list[Watch] = []

    def attach(url: str, **options: Any) -> Watch:
        found.append(spark_streams.watch(spark, url, **{**defaults, **options}))
        return found[-1]

    yield attach
    for one in found:
        one.close()
