"""Work that runs a few ticks at a time, while all other threads wait: twins, zombies, the driver's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tools.simulation import request_text
from tools.simulation.ticks import Killed

_current = threading.local()


class Actor:
    """A thread that never runs concurrently: the caller of `resume` waits until it pauses or ends.

    So a run is the same each time. counts: whether its ticks are the world's, too (a thread of the library), or only
    its own pauses. process: number of its process, None: the driver's or an executor's.
    """

    def __init__(self, work: Callable[[], Any], counts: bool = False, process: int | None = None) -> None:
        self._work = work
        self.process = process
        self.counts = counts
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
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
        return getattr(_current, "actor", None)

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
        if self._condemned or self._remaining is None or not request_text.says(data, self._at):
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
