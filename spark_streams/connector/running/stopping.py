"""Requests to stop: SIGTERM or SIGINT, to Python or to the JVM.

`spark-submit` is a JVM whose child is the Python that runs the program. A scheduler sends the signal to the JVM, a
terminal to both processes. `python program.py` receives it directly. A JVM ends at SIGTERM, and the program with it. So
its handler is replaced by one that only notifies Python, and the program then ends by itself.

PySpark's handler of SIGINT cancels all tasks from within the current call to the JVM, which breaks the connection of
that call (py4j). So it is replaced, too. For the same reason, a second Ctrl-C while the program waits for a query is
only noted, and raised between two calls.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

from pyspark.java_gateway import ensure_callback_server_started

from spark_streams.base.untyped import JavaObject
from spark_streams.connector.running.console import say

SIGNALS = ("TERM", "INT")
SIGTERM_IS_IGNORED = (
    "SIGTERM does not stop this job, because spark-submit was started with SIGTERM ignored. To stop the job, run: "
    "kill -INT {pid}"
)
_REPEAT_WINDOW = 1.0  # seconds: `timeout` and some supervisors signal the process and its group, which is one request


class Stop:
    """Stop requests to the program.

    A second signal to Python, a second later or more, raises KeyboardInterrupt: at once, or at the next `check` if the
    program waits for a query.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._last: float | None = None  # time of the last signal to this process that counts
        self._defers_interrupt = False
        self._interrupts = False
        self._callbacks: list[Callable[[], None]] = []
        self._restore_calls: list[Callable[[], object]] = []

    @property
    def is_requested(self) -> bool:
        """Whether a stop was requested."""
        return self._requested.is_set()

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Defer KeyboardInterrupt to `check`, which the block calls repeatedly between its calls to the JVM.

        An interrupted call to the JVM may leave its reply to the next call. A third signal interrupts at once.
        """
        self._defers_interrupt = True
        try:
            yield
        finally:
            self._defers_interrupt = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the program is to end at once."""
        if self._interrupts:
            raise KeyboardInterrupt

    def on_request(self, call: Callable[[], None]) -> None:
        """Call this function when a stop is requested, from a signal handler or another thread."""
        self._callbacks.append(call)

    def listen(self, gateway: JavaObject = None) -> None:
        """Handle the signals in this process and in the JVM of the gateway. Call it in the main thread only."""
        for name in SIGNALS:
            number = getattr(signal, f"SIG{name}")
            before = signal.signal(number, self._on_signal)
            self._restore_calls.append(partial(signal.signal, number, signal.SIG_DFL if before is None else before))
        if gateway is not None:
            ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
            jvm_signal = gateway.jvm.sun.misc.Signal
            for name in SIGNALS:
                before = jvm_signal.handle(jvm_signal(name), _Handler(self._request))
                self._restore_calls.append(partial(jvm_signal.handle, jvm_signal(name), before))
                ignored = gateway.jvm.sun.misc.SignalHandler.SIG_IGN
                if name == "TERM" and is_under_submit() and ignored.equals(before):
                    say(SIGTERM_IS_IGNORED.format(pid=os.getpid()))

    def restore(self) -> None:
        """Restore the handlers that were there before `listen`."""
        while self._restore_calls:
            self._restore_calls.pop()()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._last is None:
            self._last = now
            self._request()
        elif now - self._last > _REPEAT_WINDOW:
            if not self._defers_interrupt or self._interrupts:
                raise KeyboardInterrupt
            self._last, self._interrupts = now, True

    def _request(self) -> None:
        if not self._requested.is_set():
            self._requested.set()
            for call in self._callbacks:
                call()


def is_under_submit() -> bool:
    """Whether a JVM (spark-submit) has started this Python. It receives the signals of a scheduler."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class _Handler:
    """A sun.misc.SignalHandler of the JVM."""

    def __init__(self, request: Callable[[], None]) -> None:
        self._request = request

    def handle(self, _signal: object) -> None:
        self._request()

    class Java:
        implements = ["sun.misc.SignalHandler"]
