"""Entries that do not fit the query's schema, and the dead letters that they become."""

from __future__ import annotations

from spark_streams.connector.deadletter.redrive_options import RedriveOptions
from spark_streams.connector.deadletter.transform import FieldChanges
from tools.simulation.letters import CHANGED
from tools.simulation.options import DEAD
from tools.simulation.step import Step, pick
from tools.simulation.world import World

_OVERTAKES = 20.0  # seconds, more than a session lasts
_WAYS = (
    RedriveOptions(DEAD),
    RedriveOptions(DEAD),
    RedriveOptions(DEAD, limit=2),
    RedriveOptions(DEAD, max_redrives=1),
    RedriveOptions(DEAD, changes=FieldChanges(tuple(CHANGED.items()))),
)


def misfit(world: World, step: Step) -> None:
    """Add one to four entries whose value does not fit its column."""
    world.add(pick(world.names(), step.choice), 1 + int(step.amount * 4), "no number")


def redrive(world: World, step: Step) -> None:
    """Send dead letters back, for some requests or to the end; then the process is killed, or stands still. One that
    stands still goes on, or another one begins: beside it, or when its session is over."""
    redrives = world.redrives
    if redrives.standing and step.how < 0.4:
        process = redrives.standing[0]
    else:
        if redrives.standing and step.how > 0.6:
            world.network.pass_time(_OVERTAKES)
        process = redrives.start(pick([*_WAYS], step.choice))
    redrives.work(process, None if step.amount > 0.7 else int(step.amount * 80))
    if not process.actor.done and (step.how * 10) % 1 < 0.5:
        redrives.kill(process)
