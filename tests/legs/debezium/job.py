"""A query for each form of the events, as a process that is killed.

    python -m tests.legs.debezium.job URL FOLDER [drain]

Without `drain` until somebody ends it; with it to the end of what is there.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.legs.debezium.engines import FORMS, Form
from tests.legs.debezium.table import COLUMNS
from tests.legs.recipes.conftest import recipe_of
from tools.chaos.program import JAVA_OPTIONS


def writer(spark: SparkSession, url: str, folder: str, form: Form) -> DataStreamWriter:
    """Return the recipe's query, for the columns of the table."""
    recipe = recipe_of("latest_of_changes")
    columns = {"id": ("BIGINT", pa.int64()), **{name: (COLUMNS[name].spark, COLUMNS[name].arrow) for name in COLUMNS}}
    recipe.STREAM, recipe.DEAD, recipe.OPTIONS = form.stream, f"dead.{form.name}", form.options
    recipe.COLUMNS = ", ".join(f"{name} {spark_type}" for name, (spark_type, _) in columns.items())
    recipe.TABLE = pa.schema({**{name: arrow for name, (_, arrow) in columns.items()}, "_order": pa.string()})
    recipe.VALUES = tuple(COLUMNS)
    writing = recipe.into_latest(spark, url, f"{folder}/{form.name}.table")
    return writing.option("checkpointLocation", f"{folder}/{form.name}")


def main(url: str, folder: str, *drain: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 1)
        .config("spark.sql.streaming.pollingDelay", "100ms")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .getOrCreate()
    )
    writers = [writer(spark, url, folder, form) for form in FORMS]
    if drain:
        for query in [one.trigger(availableNow=True).start() for one in writers]:
            query.awaitTermination()
    else:
        for one in writers:
            one.trigger(processingTime="100 milliseconds").start()
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
