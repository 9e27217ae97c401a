"""A run that reads what is there and ends leaves nothing pending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tools.chaos import scenes
from tools.chaos.scene import Outcome, Scene

pytestmark = pytest.mark.spark

NOT_TOLD = pytest.mark.skipif(
    not HAS_READ_LIMITS, reason="this Spark does not tell a Python source which trigger it has"
)


@pytest.mark.parametrize("run", [pytest.param(scenes.once, marks=NOT_TOLD), scenes.available_now])
def test_the_end_of_a_run_leaves_nothing_pending(scene: Scene, seed: int, run: Callable[[Scene], Outcome]) -> None:
    outcome = run(scene)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
