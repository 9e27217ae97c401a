"""Being asked to stop: by SIGTERM or SIGINT, wherever it arrives.

`spark-submit` is a JVM whose child is the Python that runs the program: a scheduler that stops it tells the JVM, a
terminal tells both, and `python program.py` is told itself. A JVM that gets SIGTERM ends within moments, and the
program with it; so the JVM's handler is replaced by one that only tells Python. The program then ends by itself.

PySpark's own handler of SIGINT cancels all of Spark's tasks, from within whatever call to the JVM Python is waiting
for, which breaks that call's connection (py4j): it is replaced, too.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started

SIGNALS = ("TERM", "INT")
_TWICE = 1.0  # seconds: `timeout` and some supervisors tell the process and its group, which is one request


class Stop:
    """Whether the program has been asked to stop. A second signal to Python itself, a second
    later or more, ends it at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._here: float | None = None  # when the first signal came to this process
        self._then: list[Callable[[], None]] = []
        self._give_back: list[Callable[[], object]] = []

    @property
    def asked(self) -> bool:
        """Whether to come to an end."""
        return self._asked.is_set()

    def then(self, call: Callable[[], None]) -> None:
        """Call this when the program is asked: from a signal handler, or another thread."""
        self._then.append(call)

    def listen(self, gateway: Any = None) -> None:
        """Take the signals over, in this process and in the JVM behind a gateway. From the main thread only."""
        for name in SIGNALS:
            number = getattr(signal, f"SIG{name}")
            before = signal.signal(number, self._on_signal)
            self._give_back.append(partial(signal.signal, number, signal.SIG_DFL if before is None else before))
        if gateway is not None:
            ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
            of_jvm = gateway.jvm.sun.misc.Signal
            for name in SIGNALS:
                before = of_jvm.handle(of_jvm(name), _Handler(self._ask))
                self._give_back.append(partial(of_jvm.handle, of_jvm(name), before))

    def give_back(self) -> None:
        """The signals do again what they did before `listen`."""
        while self._give_back:
            self._give_back.pop()()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._here is None:
            self._here = time.monotonic()
            self._ask()
        elif time.monotonic() - self._here > _TWICE:
            raise KeyboardInterrupt

    def _ask(self) -> None:
        if not self._asked.is_set():
            self._asked.set()
            for call in self._then:
                call()


class _Handler:
    """A sun.misc.SignalHandler of the JVM."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask

    def handle(self, _signal: object) -> None:
        self._ask()

    class Java:
        implements = ["sun.misc.SignalHandler"]
