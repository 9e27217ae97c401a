"""What is under way when an event happens: a trigger of the query, or a move of its group that it has not followed."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.connector.source.commit_mark import Mark, committed_key
from tools.simulation.world import CONSUMER, GROUP, World


def amid_a_trigger(world: World) -> bool:
    """Whether the query takes a batch, or reserves one ahead."""
    return world.query.takes_a_batch or bool(world.helpers)


def is_sought(world: World, names: Sequence[str]) -> bool:
    """Whether the operator has set the group of one of these streams for this checkpoint (rstream groups seek), and no
    run has followed yet."""
    keys = [committed_key(name, GROUP, CONSUMER) for name in names]
    marks = [Mark.parse(value) for value in world.raw.mget(keys)] if keys else []
    return any(mark is not None and mark.is_seek for mark in marks)
