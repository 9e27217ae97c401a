"""BackgroundWorker (source.trigger.background) for the simulation: the driver's thread, a few ticks at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from spark_streams.errors import StreamStateError
from spark_streams.wire.address.address import Address
from spark_streams.wire.connection.connection import Connection
from tools.simulation.actor import Actor
from tools.simulation.world import World

world_of: dict[str, World] = {}  # the running world, under "now"


class SimulatedWorker:
    """Does the work of BackgroundWorker, at the times that the world's `pace` sets."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._jobs: deque[tuple[Callable[[Connection], object], Future[object]]] = deque()
        self._errors: list[Exception] = []
        self._broken: Exception | None = None
        self._actor: Actor | None = None
        self._server: Connection | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SimulatedWorker, (self._address,)

    def submit(self, job: Callable[[Connection], object]) -> Future[object]:
        """Run this job after the jobs that were submitted before."""
        world, result = world_of["now"], Future[object]()
        self._jobs.append((job, result))
        if self._actor is None or self._actor.done:
            self._actor = Actor(self._work, counts=True)
            world.helpers.append(self._actor)
        if world.pace < 0:
            world.let_work(self._actor)
        return result

    def wait(self) -> None:
        """Wait until all submitted jobs have run. Raises the first error."""
        if self._actor is not None and not self._actor.done:
            world_of["now"].let_work(self._actor)
        errors, self._errors, self._broken = self._errors, [], None
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Finish the submitted jobs."""
        if self._actor is not None and not self._actor.done:
            world_of["now"].let_work(self._actor)
        if self._server is not None:
            self._server.close()
            self._server = None

    def _work(self) -> None:
        while self._jobs:
            job, result = self._jobs.popleft()
            try:
                if self._broken is not None:
                    raise self._broken
                if self._server is None:
                    self._server = Connection(self._address)
                result.set_result(job(self._server))
            except Exception as error:  # noqa: BLE001 - wait() raises it
                if not isinstance(error, StreamStateError):
                    self._broken = error
                self._errors.append(error)
                result.set_exception(error)
                if self._server is not None:
                    self._server.close()
                    self._server = None
