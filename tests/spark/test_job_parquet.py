"""Micro-batches of jobs as Parquet: a batch that is run again replaces all that its first run has left."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_streams.jobs.parquet import BatchFolders

pytestmark = pytest.mark.spark


def test_a_batch_that_was_cut_leaves_nothing_of_its_first_run(spark: SparkSession, tmp_path: Path) -> None:
    """Batch 1 wrote three keys and was killed; run again it is smaller, and what it gave up comes in batch 2."""
    path = str(tmp_path / "out")
    rows = spark.range(9).selectExpr("id", "concat('key ', id % 3) AS key")
    first = BatchFolders(spark, path, ["key"])
    first.write(rows.where("id < 3"), 0)
    first.write(rows.where("id >= 3"), 1)
    (tmp_path / "out" / ".spark-staging-dead").mkdir()
    again = BatchFolders(spark, path, ["key"])
    again.sweep()
    again.write(rows.where("id = 3"), 1)
    again.write(rows.where("id > 3"), 2)
    assert sorted(row["id"] for row in spark.read.parquet(path).collect()) == list(range(9))
    assert not (tmp_path / "out" / ".spark-staging-dead").exists()
