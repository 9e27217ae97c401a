"""Micro-batches of jobs as Parquet: a batch that is run again replaces all that its first run has left."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
JOBS = Path(__file__).resolve().parents[2] / "jobs"


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Any:
    """jobs/_parquet.py's class."""
    monkeypatch.setattr(sys, "path", [str(JOBS), *sys.path])
    return importlib.import_module("_parquet").BatchFolders


def test_a_batch_that_was_cut_leaves_nothing_of_its_first_run(
    spark: SparkSession, tmp_path: Path, folders: Any
) -> None:
    """Batch 1 wrote three keys and was killed; run again it is smaller, and what it gave up comes in batch 2."""
    path = str(tmp_path / "out")
    rows = spark.range(9).selectExpr("id", "concat('key ', id % 3) AS key")
    first = folders(spark, path, ["key"])
    first.write(rows.where("id < 3"), 0)
    first.write(rows.where("id >= 3"), 1)
    (tmp_path / "out" / ".spark-staging-dead").mkdir()
    again = folders(spark, path, ["key"])
    again.sweep()
    again.write(rows.where("id = 3"), 1)
    again.write(rows.where("id > 3"), 2)
    assert sorted(row["id"] for row in spark.read.parquet(path).collect()) == list(range(9))
    assert not (tmp_path / "out" / ".spark-staging-dead").exists()
