"""Streams and groups that change under a query: a strict query stops with a named error, a lenient one counts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos import changed_streams
from chaos.scene import Outcome, Scene
from tests.servers import Server

pytestmark = pytest.mark.spark


@pytest.fixture
def scene(spark: SparkSession, server: Server, seed: int, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(spark, tmp_path, server.kind, server.url, "s", random.Random(seed))
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (changed_streams.trimmed_past_the_offset, "[RSTREAM_DATA_LOSS]"),
        (changed_streams.deleted_while_pending, "[RSTREAM_DATA_LOSS]"),
        (changed_streams.group_destroyed, "[RSTREAM_GROUP_MISSING]"),
        (changed_streams.stream_deleted, "[RSTREAM_DATA_LOSS]"),
        (changed_streams.flushed, "[RSTREAM_DATA_LOSS]"),
    ],
)
def test_what_is_gone_is_named_or_counted(
    scene: Scene, seed: int, change: Callable[[Scene], Outcome], error: str
) -> None:
    """The strict query stops with the error of that name; the lenient one reads the rest, and its progress counts."""
    outcome = change(scene)
    assert outcome.facts["error"].startswith(error), outcome.facts
    assert outcome.facts["told"] == outcome.facts["lost"]
    assert outcome.history.kept()
    assert not outcome.report, f"RSTREAM_SEED={seed}\n{outcome.report}"
