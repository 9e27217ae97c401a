"""Streams that appear and vanish under a pattern."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tools.chaos import appearing_streams
from tools.chaos.scene import Outcome, Scene

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "when", [appearing_streams.none_at_the_start, appearing_streams.all_rotated_away, appearing_streams.while_down]
)
def test_streams_that_appear_under_latest_are_read_from_their_first_entry(
    scene_by_turns: Scene, seed: int, when: Callable[[Scene], Outcome]
) -> None:
    """Also while no stream that matches has the group."""
    outcome = when(scene_by_turns)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"


def test_dead_letter_streams_that_match_the_pattern_are_no_input(scene_by_turns: Scene, seed: int) -> None:
    outcome = appearing_streams.dead_letters_match(scene_by_turns)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
