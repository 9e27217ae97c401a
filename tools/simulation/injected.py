"""Replacements for the library in a world: pauses that take no time, and the world's processes."""

from __future__ import annotations

from spark_streams.connector.errors import RetriesExhaustedError
from spark_streams.connector.wire.address.address import Patience
from spark_streams.connector.wire.lease import LeaseTerms, Processes
from tools.simulation.actor import Actor
from tools.simulation.background import world_of

_MAX_PAUSES = 40  # attempts of one operation, before it is given up


def _pause(seconds: float) -> None:
    world = world_of["now"]
    world.pauses += 1
    world.network.pass_time(seconds)
    world.tick()
    if world.pauses > _MAX_PAUSES:
        raise RetriesExhaustedError("the server did not answer; repair it")


def _wait(seconds: float) -> None:
    """Wait for another process' session."""
    world = world_of["now"]
    world.network.pass_time(seconds)
    world.tick()


class _WorldProcesses(Processes):
    """The driver of a world is a simulated process, which can die. Others may live beside it (powers_rivals,
    redrives)."""

    @property
    def pid(self) -> int:
        actor = Actor.current()
        return world_of["now"].process if actor is None or actor.process is None else actor.process

    @property
    def space(self) -> str:
        return "simulated"

    def this(self) -> dict[str, str | int]:
        return {"host": "simulated", "space": self.space, "pid": self.pid, "born": self.born(self.pid)}

    def born(self, pid: int) -> str:
        world = world_of["now"]
        return "1" if pid in (world.process, world.rival) or world.redrives.lives(pid) else ""


PATIENCE = Patience(sleep=_pause)
TERMS = LeaseTerms(sleep=_wait, processes=_WorldProcesses(), is_kept=False)
