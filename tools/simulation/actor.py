"""Moments at which an event may happen, the steps that wait for them, and work that runs a few of these ticks at a time
while all other threads wait: twins, zombies, the driver's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hiredis

from tools.simulation.setup import Step


def says(data: bytes | memoryview | None, text: str) -> bool:
    """Whether a command of these bytes contains a text; always if it is empty. None: no request."""
    return not text or (data is not None and any(text in " ".join(words) for words in _commands(data)))


def describe(data: bytes | memoryview, limit: int = 4) -> str:
    """Return the commands as `XINFO STREAM s:0 | XINFO GROUPS s:0 | …`."""
    shown = [
        " ".join(word[:30] for word in words[:12]) + (" …" if len(words) > 12 else "") for words in _commands(data)
    ]
    more = f" | … ({len(shown)})" if len(shown) > limit else ""
    return " | ".join(shown[:limit]) + more


def _commands(data: bytes | memoryview) -> Iterator[list[str]]:
    reader = hiredis.Reader()
    reader.feed(bytes(data))
    while (words := reader.gets()) is not False:
        if isinstance(words, list) and words and words[0] != b"ECHO":
            yield [word.decode("utf-8", "replace") for word in words]


# -- ticks -------------------------------------------------------------------------------------------------------------


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
            armed.remaining -= (beside or not armed.beside) and says(data, armed.step.at)
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
                    end = end if isinstance(end, Killed) else error  # of a dead process no task fails
        finally:
            self._busy = False
        try:
            if end is not None:
                raise end
        finally:
            end = None  # no cycle: what its frames hold ends with it


# -- threads that never run concurrently -------------------------------------------------------------------------------


class _Current(threading.local):
    actor: Actor | None = None


_current = _Current()


class Actor:
    """A thread that never runs concurrently: the caller of `resume` waits until it pauses or ends.

    So a run is the same each time. counts: whether its ticks are the world's, too (a thread of the library), or only
    its own pauses. process: number of its process, None: the driver's or an executor's.
    """

    def __init__(self, work: Callable[[], Any], counts: bool = False, process: int | None = None) -> None:
        self._work = work
        self.process = process
        self.counts = counts
        self._go, self._back = threading.Lock(), threading.Lock()  # held, except while the other one takes its turn
        self._go.acquire()
        self._back.acquire()
        self._thread: threading.Thread | None = None
        self._remaining: int | None = None
        self._at = ""
        self._condemned = False
        self.done = False
        self.is_idle = False  # it waits for work, not for ticks
        self.result: Any = None
        self.error: BaseException | None = None

    @staticmethod
    def current() -> Actor | None:
        """Return the actor of this thread; None in the main thread."""
        return _current.actor

    def resume(self, ticks: int | None = None, at: str = "") -> None:
        """Let the actor work for this number of ticks, or to its end. at: only ticks before a request with this text
        count. `error` holds the error that it raises."""
        if self.done:
            return
        self._remaining, self._at, self.is_idle = ticks, at, False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()

    def end(self) -> None:
        """Kill the process of the actor: raise Killed at its current position."""
        if not self.done and self._thread is not None:
            self._condemned = True
            self.resume()
        self.done = True

    @property
    def is_dead(self) -> bool:
        """Whether its process was killed: it only unwinds, and reaches no server."""
        return self._condemned

    def tick(self, data: bytes | memoryview | None = None) -> None:
        """Pause if the ticks of `resume` are over. data: the request that is about to be sent. Called in the actor's
        thread."""
        if self._condemned or self._remaining is None or not says(data, self._at):
            return
        if self._remaining > 0:
            self._remaining -= 1
            return
        self._pause()

    def idle(self) -> None:
        """Pause until `resume` because there is nothing to do. Called in the actor's thread."""
        self.is_idle = True
        self._pause()

    def _pause(self) -> None:
        self._back.release()
        self._go.acquire()
        if self._condemned:
            raise Killed

    def _run(self) -> None:
        _current.actor = self
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - the caller of resume reads it
            self.error = error
        self.done = True
        self._back.release()
