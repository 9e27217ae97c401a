"""Who writes shards and who reads them is killed in the midst of a batch: each key's rows are there once, in order."""

from __future__ import annotations

import pytest

from tools.chaos.drivers import sharded
from tools.chaos.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.kills]
SINK = "stream"


def test_a_driver_that_is_killed_amid_a_batch(stage_by_turns: Stage, seed: int) -> None:
    ended = sharded(stage_by_turns, rows=10_000, kills=2)
    assert stage_by_turns.is_right(), f"RSTREAM_SEED={seed}\n{stage_by_turns}"
    assert not ended
