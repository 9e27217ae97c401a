"""Other consumers of a query's group, on both servers."""

from __future__ import annotations

import pytest

from tools.chaos import consumers
from tools.chaos.scene import Scene

pytestmark = pytest.mark.spark


def test_what_a_dead_consumer_holds_is_taken_over_once(scene: Scene, seed: int) -> None:
    """After claimIdle its entries are in one batch, delivered twice by the server's counter, and settled with it."""
    outcome = consumers.dead_consumer(scene)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"


def test_a_living_consumer_of_the_group_has_entries_of_its_own(scene: Scene, seed: int) -> None:
    """Every entry goes to the query or to the other consumer, whose pending entries the query leaves alone."""
    outcome = consumers.living_consumer(scene)
    assert outcome.history.taken
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"


def test_a_second_query_under_one_group_and_consumer_is_refused(scene: Scene, seed: int) -> None:
    """With a named error, before it has read anything; the first goes on, and when it has stopped the name is free."""
    outcome = consumers.double_query(scene)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"


def test_an_ordered_batch_ascends_but_for_claimed_entries(scene_by_turns: Scene, seed: int) -> None:
    """ordered=true beside claimIdle: the entries of a dead consumer come first in their batch."""
    outcome = consumers.ordered_claims(scene_by_turns)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
