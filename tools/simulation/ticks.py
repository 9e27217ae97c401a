"""Count the moments at which an event may happen, and run the steps that wait for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tools.simulation import request_text
from tools.simulation.step import Step


class Killed(BaseException):
    """The process is killed (SIGKILL)."""


class TaskFailed(BaseException):
    """This execution of a task failed, and Spark starts another one."""


@dataclass
class _Armed:
    step: Step
    remaining: int
    beside: bool


class Ticks:
    """Clock of a run. happen: executes a step; it may raise Killed or TaskFailed."""

    def __init__(self, happen: Callable[[Step], None]) -> None:
        self._happen = happen
        self._armed: list[_Armed] = []
        self._busy = False
        self.count = 0

    def arm(self, step: Step, beside: bool = False) -> None:
        """Execute the step after `step.delay` ticks. beside: only those of the driver's background thread count."""
        self._armed.append(_Armed(step, step.delay, beside))

    def disarm(self) -> None:
        """Drop all waiting steps."""
        self._armed.clear()

    @property
    def waiting(self) -> bool:
        """Whether steps are waiting."""
        return bool(self._armed)

    def tick(self, beside: bool = False, data: bytes | memoryview | None = None) -> None:
        """Execute the due steps. A step that ends the process takes effect after the others. beside: the tick is of the
        driver's background thread; data: the request that is about to be sent."""
        if self._busy:
            return
        self.count += 1
        due = []
        for armed in self._armed:
            armed.remaining -= (beside or not armed.beside) and request_text.says(data, armed.step.at)
            if armed.remaining <= 0:
                due.append(armed)
        if not due:
            return
        self._armed = [armed for armed in self._armed if armed not in due]
        self._busy = True
        end: BaseException | None = None
        try:
            for armed in due:
                try:
                    self._happen(armed.step)
                except (Killed, TaskFailed) as error:
                    end = error
        finally:
            self._busy = False
        if end is not None:
            raise end
