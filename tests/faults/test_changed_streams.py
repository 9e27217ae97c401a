"""Streams and groups that change under a query: a strict query stops with a named error, a lenient one counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tools.chaos import changed_streams
from tools.chaos.scene import Outcome, Scene

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "change",
    [
        changed_streams.trimmed_past_the_offset,
        changed_streams.deleted_while_pending,
        changed_streams.group_destroyed,
        changed_streams.stream_deleted,
        changed_streams.flushed,
    ],
)
def test_lost_entries_are_named_or_counted(scene: Scene, seed: int, change: Callable[[Scene], Outcome]) -> None:
    """A strict query stops with a named error; a lenient one reads the rest, and its progress says how many went."""
    outcome = change(scene)
    assert outcome, f"RSTREAM_SEED={seed}\n{outcome}"
