"""What only the exactly-once sink can meet: zombies of its tasks, and a server of its own that is away."""

from __future__ import annotations

import pytest

from tools.chaos.servers import many_restarts
from tools.chaos.stage import Stage
from tools.chaos.tasks import zombie

pytestmark = [pytest.mark.spark, pytest.mark.kills]
SINK = "stream"  # of all scenes here


@pytest.mark.parametrize("elsewhere", [False, True], ids=["into one stream", "into another one each"])
def test_a_zombie_of_a_task_that_was_given_up_writes_nothing(stage_by_turns: Stage, seed: int, elsewhere: bool) -> None:
    """Before its first row it stands still until two batches later, which may have written to another stream."""
    zombie(stage_by_turns, later_batches=2, elsewhere=elsewhere, rows=0)
    assert stage_by_turns.is_right(), f"RSTREAM_SEED={seed}\n{stage_by_turns}"


def test_a_zombie_of_a_run_that_has_ended_writes_nothing(stage_by_turns: Stage, seed: int) -> None:
    """The query was started again and has written the batch."""
    zombie(stage_by_turns, of_an_old_run=True, later_batches=1)
    assert stage_by_turns.is_right(), f"RSTREAM_SEED={seed}\n{stage_by_turns}"


def test_no_entry_is_to_blame_for_a_sink_that_is_away(stage_by_turns: Stage, seed: int) -> None:
    """With maxDeliveries, and more restarts than it takes to find the entry that kills a query."""
    many_restarts(stage_by_turns, entries=3, restarts=6)
    assert stage_by_turns.is_right(), f"RSTREAM_SEED={seed}\n{stage_by_turns}"
