"""An operator's commands at any moment: every entry is read once, or what is wrong is named."""

from __future__ import annotations

import pytest

from tools.chaos import operators
from tools.chaos.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.kills]


@pytest.mark.parametrize("hand", operators.ACTIONS)
def test_an_operators_hand_costs_nothing_or_is_named(scene_by_turns: Scene, seed: int, hand: str) -> None:
    """XCLAIM, XAUTOCLAIM, XACK, DELCONSUMER, SETID, DESTROY: while the query runs, or while it is down."""
    outcome = operators.at_a_moment(scene_by_turns, hand)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
