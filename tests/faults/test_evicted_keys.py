"""Keys of the product are evicted between two batches."""

from __future__ import annotations

import pytest

from tools.chaos import evicted_keys
from tools.chaos.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.kills]


def test_evicted_keys_are_noticed_or_do_no_harm(scene_by_turns: Scene, seed: int) -> None:
    """Some of all leases, ledgers and notes; every entry is in the sink once, or a dead letter once."""
    outcome = evicted_keys.at_a_moment(scene_by_turns)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
