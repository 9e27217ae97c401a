"""Entries that are tried again, under a driver that is killed at random moments: each ends once."""

from __future__ import annotations

import pytest

from tools.chaos import retries
from tools.chaos.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.kills]


def test_what_is_tried_again_is_tried_once_a_time(scene_by_turns: Scene, seed: int) -> None:
    outcome = retries.killed(scene_by_turns)
    assert not outcome.wrong, f"RSTREAM_SEED={seed}\n{outcome}"
