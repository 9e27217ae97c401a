"""Steps of a run: each asks or changes the server, with what the run knows before it, and returns what it knows then.

After a broken connection, Session.run waits for the server and runs the step again. Each attempt begins by making the
run state unknown, so a step that fails leaves it unknown: the next attempt asks the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spark_streams.connector.errors import DataLossError, GroupMissingError
from spark_streams.connector.source.group.remedies import DataLoss
from spark_streams.connector.source.trigger.run_state import RunState
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.session import Session

_TRIES = 5  # attempts of a trigger during which streams or groups vanish (failOnDataLoss=false)

T = TypeVar("T")


class Steps:
    """The steps of one run. run: what the run knows."""

    def __init__(self, session: Session, losses: DataLoss, run: RunState) -> None:
        self._session = session
        self._losses = losses
        self.run = run

    def take(self, step: Callable[[Server, RunState], tuple[T, RunState]]) -> T:
        """Run a step with what this run knows. The step returns what is known after it."""

        def attempt(server: Server) -> T:
            run, self.run = self.run, self.run.unknown()
            self._losses.attempt_began()
            result, self.run = step(server, run)
            self._losses.step_ended()
            return result

        return self._session.run(attempt)

    def ask(self, question: Callable[[Server], T]) -> T:
        """Run a step that does not change what this run knows."""
        return self.take(lambda server, run: (question(server), run))

    def take_again(self, step: Callable[[Server, RunState], tuple[T, RunState]]) -> T:
        """Run a step again if a stream or group vanishes under it and losses are allowed: the next attempt counts what
        is lost with it."""
        for _ in range(_TRIES - 1):
            try:
                return self.take(step)
            except (GroupMissingError, DataLossError):
                if not self._losses.allowed:
                    raise
        return self.take(step)
