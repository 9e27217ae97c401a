"""The clock of the server goes back or ahead: alone, or because another machine becomes the server."""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.operations.verify.history import id_key
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.powers_accidents import fail_over, promote, restore
from tools.simulation.step import Step
from tools.simulation.world import World

# Part of all moves that are so far at most → seconds.
_SECONDS: Mapping[float, float] = {0.48: 2.0, 0.96: 60.0, 1.0: 3600.0}


def clock_back(world: World, step: Step) -> None:
    """The server's clock is set back."""
    _move(world, -_seconds(step))


def clock_ahead(world: World, step: Step) -> None:
    """The server's clock is set ahead: what expires within that time is gone, sessions of leases among it."""
    _move(world, _seconds(step))


def fail_over_apart(world: World, step: Step) -> None:
    """A failover to a machine with another clock."""
    fail_over(world, step, becomes="promote_apart")


def promote_apart(world: World, step: Step) -> None:
    """The replica becomes the master. Its clock is behind in two of three cases."""
    if world.replica is not None:
        promote(world, step)
        _move(world, _either_way(step))


def restore_apart(world: World, step: Step) -> None:
    """Restore the last backup on a machine with another clock."""
    if world.backup is not None:
        restore(world, step)
        _move(world, _either_way(step))


def _seconds(step: Step) -> float:
    return next(seconds for part, seconds in _SECONDS.items() if step.amount < part)


def _either_way(step: Step) -> float:
    return _seconds(step) if step.choice > 2 / 3 else -_seconds(step)


def _move(world: World, seconds: float) -> None:
    assert isinstance(world.server, ProcessServer), "this server's clock does not move"
    world.tell(f"      the server's clock: {seconds:+g} s")
    world.server.core.clock.move_server(seconds)
    if seconds < 0:
        _excuse_what_was_handed_over(world)


def _excuse_what_was_handed_over(world: World) -> None:
    """Documented: handed-over entries within the range of a batch may be acknowledged unread then."""
    for name in world.names():
        seen = world.see(name)
        end = seen.position if world.query.takes_a_batch else world.query.logged(name)
        for entry in world.model.entries_of(name, seen.ours()):
            if entry.shuffled and end is not None and entry.key <= id_key(end):
                world.model.excuse([entry], "handed over before the clock was set back")
