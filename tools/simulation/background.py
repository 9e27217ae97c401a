"""BackgroundWorker (source.query.triggering) for the simulation: its thread works a few ticks at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from spark_streams.connector.source.query.triggering import BackgroundWorker
from spark_streams.connector.source.trigger.run_state import Job
from spark_streams.connector.wire.address.address import Address
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
