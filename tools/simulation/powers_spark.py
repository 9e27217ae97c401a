"""Events of Spark's processes: the driver is killed, the query restarts with other options, tasks fail or run twice."""

from __future__ import annotations

from tools.simulation.actor import Actor
from tools.simulation.step import Step, pick
from tools.simulation.tasks import Twin
from tools.simulation.ticks import Killed, TaskFailed
from tools.simulation.world import World

TWIN_TICKS = 20  # the highest number of ticks after which a twin stands still


def kill(world: World, step: Step) -> None:
    """SIGKILL the driver."""
    if world.query.running:
        raise Killed


def crash(world: World, step: Step) -> None:
    """SIGKILL the driver while it runs the next batch: after its first task, or after the sink has closed it."""
    world.query.tasks.crashes.append(step.how >= 0.5)


def restart(world: World, step: Step) -> None:
    """Stop the query. The next trigger starts it with other options."""
    world.query.change(dict(step.options))
    if world.query.running:
        raise Killed


def relist(world: World, step: Step) -> None:
    """Stop the query, and start it with one stream more or less."""
    query = world.query
    if "streams" not in query.options:
        return
    listed, name = set(query.reads()), pick(world.names(), step.choice)
    listed ^= {name}
    query.change({**query.options, "streams": ",".join(sorted(listed or {name}))})
    if query.running:
        raise Killed


def renew(world: World, step: Step) -> None:
    """Stop the query. The next trigger starts it with a new checkpoint: its group continues (onNewCheckpoint)."""
    world.operator.renew()


def fail(world: World, step: Step) -> None:
    """Let the running task fail, if there is one."""
    if world.query.tasks.in_task and Actor.current() is None:
        raise TaskFailed


def twin(world: World, step: Step) -> None:
    """Run a task of the next batch twice: the second execution stands still for a while."""
    later = pick([0, 0, 0, 1, 2, -1], step.how)
    world.query.tasks.twins.append(Twin(step.choice, int(step.amount * TWIN_TICKS), later, step.at))


def wake(world: World, step: Step) -> None:
    """Let all tasks that stand still continue."""
    world.query.tasks.wake_all()
