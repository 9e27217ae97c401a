"""Entries are trimmed or deleted at any moment of a query: a strict one names it, a lenient one counts each of them."""

from __future__ import annotations

import pytest

from tools.chaos import taken_entries
from tools.chaos.moments import DOWN, Moment
from tools.chaos.scene import Scene

pytestmark = [pytest.mark.spark, pytest.mark.chaos]

# (moment, mode, where it starts, lenient, how, which entries)
TAKEN = {
    "before the first batch, from an id": (Moment("started", 0), "at-least-once", "an id", False, 0, "ahead"),
    "between look and reserve": (Moment("looked", 1), "at-least-once", "earliest", False, 1, "ahead"),
    "while a batch is in flight": (Moment("reading", 1), "at-least-once", "latest", True, 1, "in flight"),
    "between look and choice, without a pending list": (Moment("looked", 1), "noAck", "earliest", False, 1, "ahead"),
    "ahead of the group, without a pending list": (Moment("committed", 0), "noAck", "earliest", True, 2, "ahead"),
    "while the query is down": (Moment(DOWN, 0), "noAck", "earliest", False, 1, "ahead"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_at_a_moment_is_named_or_counted(scene_by_turns: Scene, seed: int, name: str) -> None:
    """Never a smaller batch in silence; and what had been read before stops nobody."""
    moment, mode, start, lenient, how, where = TAKEN[name]
    outcome = taken_entries.taken_at_a_moment(
        scene_by_turns, moment, mode, start, lenient, taken_entries.HOW[how], where
    )
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"


def test_all_that_is_taken_while_a_query_runs_is_counted(scene_by_turns: Scene, seed: int) -> None:
    """Eight times, at any time; the number of entries that never came is what the progress says."""
    outcome = taken_entries.taken_while_running(scene_by_turns)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
