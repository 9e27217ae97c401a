"""A run that reads what is there and ends leaves nothing pending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tools.chaos import tasks
from tools.chaos.stage import Stage

pytestmark = pytest.mark.spark

NOT_TOLD = pytest.mark.skipif(
    not HAS_READ_LIMITS, reason="this Spark does not tell a Python source which trigger it has"
)


@pytest.mark.parametrize("play", [pytest.param(tasks.once, marks=NOT_TOLD), tasks.available_now])
def test_the_end_of_a_run_leaves_nothing_pending(stage: Stage, seed: int, play: Callable[[Stage], None]) -> None:
    play(stage)
    assert stage.is_right(), f"RSTREAM_SEED={seed}\n{stage}"
