"""The recipe of changes for the table, as the queries of tests/legs/killed.py: one for each form of the events."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.legs.debezium.engines import FORMS, Form
from tests.legs.debezium.table import COLUMNS
from tests.legs.killed import run
from tests.legs.recipes.conftest import recipe_of


def writer(form: Form, spark: SparkSession, url: str, folder: str) -> DataStreamWriter:
    recipe: Any = recipe_of("latest_of_changes")
    columns = {"id": ("BIGINT", pa.int64()), **{name: (COLUMNS[name].spark, COLUMNS[name].arrow) for name in COLUMNS}}
    recipe.STREAM, recipe.DEAD, recipe.OPTIONS = form.stream, f"dead.{form.name}", form.options
    recipe.COLUMNS = ", ".join(f"{name} {spark_type}" for name, (spark_type, _) in columns.items())
    recipe.TABLE = pa.schema({**{name: arrow for name, (_, arrow) in columns.items()}, "_order": pa.string()})
    recipe.VALUES = tuple(COLUMNS)
    return recipe.into_latest(spark, url, f"{folder}/{form.name}.table")


if __name__ == "__main__":
    run({form.name: partial(writer, form) for form in FORMS})
