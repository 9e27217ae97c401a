"""What stands in the place of threads, pauses, processes and TaskContext of the library in a world."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from spark_streams.connector.errors import RetriesExhaustedError
from spark_streams.connector.source.query.triggering import BackgroundWorker
from spark_streams.connector.source.trigger.run_state import Job
from spark_streams.connector.wire.address import Address, Patience
from spark_streams.connector.wire.lease import LeaseTerms, Processes
from tools.simulation.actor import Actor
from tools.simulation.world import World

world_of: dict[str, World] = {}  # the running world, under "now"
Submitted = tuple[Job, Future[object]] | None


class _Thread:
    """In place of threading.Thread, and of the queue of its jobs: it works when the world lets it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._jobs: deque[Submitted] = deque()
        self._actor = Actor(work, counts=True)

    def put(self, submitted: Submitted) -> None:
        """SimpleQueue.put."""
        world = world_of["now"]
        self._jobs.append(submitted)
        if self._actor not in world.threads:
            world.threads.append(self._actor)
        if self._actor not in world.helpers:
            world.helpers.append(self._actor)

    def get(self) -> Submitted:
        """SimpleQueue.get, in the thread."""
        while not self._jobs:
            self._actor.idle()
        return self._jobs.popleft()

    def join(self) -> None:
        """Let the thread work to the end of its jobs."""
        world = world_of["now"]
        if self._actor in world.helpers:
            world.let_work(self._actor)


class SimulatedWorker(BackgroundWorker):
    """Does the work of BackgroundWorker, by its own code, at the times that the world's `pace` sets."""

    _thread: Any

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._begin()

    def _begin(self) -> None:
        self._thread = self._jobs = _Thread(self._work)  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return SimulatedWorker, (self._address,)

    def submit(self, job: Job) -> Future[object]:
        result = super().submit(job)
        if world_of["now"].pace < 0:
            self._thread.join()
        return result

    def _end_jobs(self) -> None:
        self._thread.join()
        super()._end_jobs()

    def close(self) -> None:
        super().close()
        self._begin()


# -- pauses that take no time, and processes ---------------------------------------------------------------------------


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


# -- tasks -------------------------------------------------------------------------------------------------------------


_current = threading.local()


class TaskPlace:
    """One execution of a task."""

    def __init__(self, query: str, number: int, query_run: str, partition: int) -> None:
        self._properties = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": str(number),
            "spark.jobGroup.id": query_run,
        }
        self._partition = partition

    def __enter__(self) -> None:
        _current.place = self

    def __exit__(self, *_: object) -> None:
        _current.place = None

    @staticmethod
    def get() -> TaskPlace | None:
        """Return the task of this thread; None on the driver."""
        return getattr(_current, "place", None)

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)

    def partitionId(self) -> int:
        return self._partition
