"""Fifty random steps under a pattern, on both servers."""

from __future__ import annotations

import pytest

from chaos.appearing_streams import random_steps
from chaos.scene import Scene

pytestmark = pytest.mark.spark


def test_streams_appear_and_vanish_under_a_pattern(scene: Scene, seed: int) -> None:
    """Add, create, delete, wait, restart: new streams are read from their start, nothing that stays is lost."""
    outcome = random_steps(scene, 50)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
