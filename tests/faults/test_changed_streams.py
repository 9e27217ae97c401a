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
    made.close()


@pytest.mark.parametrize(
    "change",
    [
        changed_streams.trimmed_past_the_offset,
        changed_streams.deleted_while_pending,
        changed_streams.group_destroyed,
        changed_streams.stream_deleted,
        changed_streams.flushed,
    ],
)
def test_what_is_gone_is_named_or_counted(scene: Scene, seed: int, change: Callable[[Scene], Outcome]) -> None:
    """A strict query stops with a named error; a lenient one reads the rest, and its progress says how many went."""
    outcome = change(scene)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
