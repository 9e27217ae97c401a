"""A server that goes away for two seconds."""

from __future__ import annotations

import pytest

from tools.chaos import scenes
from tools.chaos.scene import Moment, Scene

pytestmark = [pytest.mark.spark, pytest.mark.kills]


@pytest.mark.parametrize("stage", ["reading", "writing", scenes.BEGINNING])
def test_a_restart_of_the_server_is_waited_for(scene_by_turns: Scene, seed: int, stage: str) -> None:
    """Two seconds, when a task begins to read or to write, or when the query begins: it does not end."""
    outcome = scenes.restarted(scene_by_turns, Moment(stage, rows=0), 2)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
