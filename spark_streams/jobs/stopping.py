"""Being asked to stop: by SIGTERM or SIGINT, wherever it arrives.

`spark-submit` is a JVM whose child is the Python that runs the job: a scheduler that stops the job tells the JVM, a
terminal tells both, and `python jobs/NAME.py` is told itself. A JVM that gets SIGTERM ends within moments, and the job
with it; so the JVM's handler is replaced by one that only tells Python. The job then comes to its end by itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started

SIGNALS = ("TERM", "INT")


class Stop:
    """Whether the job has been asked to stop. A second signal to Python itself ends it at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._here = False
        self._then: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        """Whether to come to an end."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait so long at the most; whether the job has been asked."""
        return self._asked.wait(seconds)

    def then(self, call: Callable[[], None]) -> None:
        """Call this when the job is asked: from a signal handler, or another thread."""
        self._then.append(call)

    def listen(self, gateway: Any = None) -> None:
        """Take the signals over, in this process and in the JVM behind a gateway."""
        for name in SIGNALS:
            signal.signal(getattr(signal, f"SIG{name}"), self._on_signal)
        if gateway is not None:
            ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
            of_jvm = gateway.jvm.sun.misc.Signal
            for name in SIGNALS:
                of_jvm.handle(of_jvm(name), _Handler(self._ask))

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._here:
            raise KeyboardInterrupt
        self._here = True
        self._ask()

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
