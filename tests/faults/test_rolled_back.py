"""An older checkpoint: its entries come again, or an error says what is wrong."""

from __future__ import annotations

import pytest

from tools.chaos.rolled_back import rolled_back
from tools.chaos.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.chaos]


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        ("older copy", "at-least-once"),
        ("last of both logs deleted", "shared"),
        ("last commits deleted", "noAck"),
    ],
)
def test_a_checkpoint_that_is_rolled_back_passes_over_nothing(
    scene_by_turns: Scene, seed: int, how: str, mode: str
) -> None:
    """In any mode, and where others read from the group; what the sink has written since is not written again."""
    outcome = rolled_back(scene_by_turns, how, mode)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
