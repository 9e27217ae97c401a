"""Work that is done a few ticks at a time, while everybody else stands still: twins, zombies, the driver's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tools.simulation.ticks import Killed

_here = threading.local()


class Actor:
    """Has a thread, but never runs beside anybody: who resumes it waits until it pauses or ends. So a run is the same
    each time.

    work: what it does; counts: whether its ticks are the world's, too (the product's own thread), or only pauses of it.
    """

    def __init__(self, work: Callable[[], Any], counts: bool = False) -> None:
        self._work = work
        self.counts = counts
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._left: int | None = None
        self._condemned = False
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    @staticmethod
    def current() -> Actor | None:
        """The one whose thread this is; None in the main thread."""
        return getattr(_here, "actor", None)

    def resume(self, ticks: int | None = None) -> None:
        """Let it work for so many ticks, or to its end; what it raises there is in `error`."""
        if self.done:
            return
        self._left = ticks
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()

    def end(self) -> None:
        """Its process is gone: where it stands, Killed is raised."""
        if not self.done and self._thread is not None:
            self._condemned = True
            self.resume()
        self.done = True

    def tick(self) -> None:
        """Called in its own thread: pause where it was to work only so far."""
        if self._condemned or self._left is None:
            return
        if self._left > 0:
            self._left -= 1
            return
        self._back.release()
        self._go.acquire()
        if self._condemned:
            raise Killed

    def _run(self) -> None:
        _here.actor = self
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever resumed it looks at it
            self.error = error
        self.done = True
        self._back.release()
