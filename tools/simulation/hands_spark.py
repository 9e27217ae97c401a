"""Powers over Spark's processes: the driver is killed, the query started again otherwise, tasks fail or run twice."""

from __future__ import annotations

from tools.simulation.actor import Actor
from tools.simulation.step import Step, pick
from tools.simulation.tasks import Twin
from tools.simulation.ticks import Killed, TaskFailed
from tools.simulation.world import World


def kill(world: World, step: Step) -> None:
    """SIGKILL of the driver."""
    if world.query.running:
        raise Killed


def restart(world: World, step: Step) -> None:
    """The query is stopped, and started with other options at the next trigger."""
    world.query.change(dict(step.options))
    if world.query.running:
        raise Killed


def relist(world: World, step: Step) -> None:
    """The query is stopped, and started with a stream more or less."""
    query = world.query
    if "streams" not in query.options:
        return
    listed, name = set(query.reads()), pick(world.names(), step.which)
    listed ^= {name}
    query.change({**query.options, "streams": ",".join(sorted(listed or {name}))})
    if query.running:
        raise Killed


def fail(world: World, step: Step) -> None:
    """A task fails; nothing where none runs."""
    if world.query.tasks.in_task and Actor.current() is None:
        raise TaskFailed


def twin(world: World, step: Step) -> None:
    """A task of the next batch runs twice: the other one stands still meanwhile."""
    later = pick([0, 0, 0, 1, 2, -1], step.how)
    world.query.tasks.twins.append(Twin(step.which, int(step.much * 20), later))
