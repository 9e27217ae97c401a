"""Moments at which something may happen, counted; and the steps that wait for theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tools.simulation.step import Step


class Killed(BaseException):
    """The process is gone (SIGKILL)."""


class TaskFailed(BaseException):
    """This execution of a task is over, and Spark begins another one."""


@dataclass
class _Armed:
    step: Step
    left: int


class Ticks:
    """happen: carries a step out; it may raise Killed or TaskFailed."""

    def __init__(self, happen: Callable[[Step], None]) -> None:
        self._happen = happen
        self._armed: list[_Armed] = []
        self._busy = False
        self.count = 0

    def arm(self, step: Step) -> None:
        """It happens `step.delay` ticks from now."""
        self._armed.append(_Armed(step, step.delay))

    def disarm(self) -> None:
        """What has not happened yet does not happen."""
        self._armed.clear()

    @property
    def waiting(self) -> bool:
        """Whether something is still to happen."""
        return bool(self._armed)

    def tick(self) -> None:
        """A moment: what is due happens. What ends the process comes last."""
        if self._busy:
            return
        self.count += 1
        due = []
        for one in self._armed:
            one.left -= 1
            if one.left <= 0:
                due.append(one)
        if not due:
            return
        self._armed = [one for one in self._armed if one not in due]
        self._busy = True
        end: BaseException | None = None
        try:
            for one in due:
                try:
                    self._happen(one.step)
                except (Killed, TaskFailed) as error:
                    end = error
        finally:
            self._busy = False
        if end is not None:
            raise end
