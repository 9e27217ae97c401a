"""Entries that are tried again, under a driver that is killed at random moments: each ends once."""

from __future__ import annotations

import pytest

from tools.chaos.drivers import retried
from tools.chaos.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.kills]


def test_what_is_tried_again_is_tried_once_a_time(stage_by_turns: Stage, seed: int) -> None:
    retried(stage_by_turns)
    assert stage_by_turns.is_right(), f"RSTREAM_SEED={seed}\n{stage_by_turns}"
