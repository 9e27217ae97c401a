"""Fifty random steps under a pattern, on both servers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.appearing_streams import random_steps
from chaos.scene import Scene
from tests.servers import Server

pytestmark = pytest.mark.spark


@pytest.fixture
def scene(spark: SparkSession, server: Server, seed: int, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(spark, tmp_path, server.kind, server.url, "s", random.Random(seed))
    yield made
    made.close()


def test_streams_appear_and_vanish_under_a_pattern(scene: Scene, seed: int) -> None:
    """Add, create, delete, wait, restart: new streams are read from their start, nothing that stays is lost."""
    outcome = random_steps(scene, 50)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
