"""What the product is given in a world: pauses that pass at once, and processes that are the world's."""

from __future__ import annotations

from spark_streams.errors import RetriesExhaustedError
from spark_streams.wire.address.patience import Patience
from spark_streams.wire.lease import Processes, Terms
from tools.simulation.beside import world_of

_MOST_PAUSES = 40  # tries of one thing, then it is given up


def _pause(seconds: float) -> None:
    world = world_of["now"]
    world.pauses += 1
    world.tick()
    if world.pauses > _MOST_PAUSES:
        raise RetriesExhaustedError("the server was tried without success; mend it")


class _WorldProcesses(Processes):
    """The driver of a world is a process of its own, which can die."""

    @property
    def pid(self) -> int:
        return world_of["now"].process

    @property
    def space(self) -> str:
        return "simulated"

    def born(self, pid: int) -> str:
        return "1" if pid == self.pid else ""


PATIENCE = Patience(sleep=_pause)
TERMS = Terms(processes=_WorldProcesses(), is_kept=False)
