"""What only the exactly-once sink can meet: zombies of its tasks, and a server of its own that is away."""

from __future__ import annotations

import pytest

from tools.chaos import scenes
from tools.chaos.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.kills]
SINK = "stream"  # of all scenes here


@pytest.mark.parametrize("elsewhere", [False, True], ids=["into one stream", "into another one each"])
def test_a_zombie_of_a_task_that_was_given_up_writes_nothing(scene_by_turns: Scene, seed: int, elsewhere: bool) -> None:
    """Before its first row it stands still until two batches later, which may have written to another stream."""
    outcome = scenes.task(scene_by_turns, later_batches=2, elsewhere=elsewhere, rows=0)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"


def test_a_zombie_of_a_run_that_has_ended_writes_nothing(scene_by_turns: Scene, seed: int) -> None:
    """The query was started again and has written the batch."""
    outcome = scenes.of_an_old_run(scene_by_turns, later_batches=1)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"


def test_no_entry_is_to_blame_for_a_sink_that_is_away(scene_by_turns: Scene, seed: int) -> None:
    """With maxDeliveries, and more restarts than it takes to find the entry that kills a query."""
    outcome = scenes.many_restarts(scene_by_turns, entries=3, restarts=6)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
