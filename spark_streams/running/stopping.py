"""Being asked to stop: by SIGTERM or SIGINT, wherever it arrives.

`spark-submit` is a JVM whose child is the Python that runs the program: a scheduler that stops it tells the JVM, a
terminal tells both, and `python program.py` is told itself. A JVM that gets SIGTERM ends within moments, and the
program with it; so the JVM's handler is replaced by one that only tells Python. The program then ends by itself.

PySpark's own handler of SIGINT cancels all of Spark's tasks, from within whatever call to the JVM Python is waiting
for, which breaks that call's connection (py4j): it is replaced, too. For the same reason a second Ctrl-C, while a query
is waited for, is only noted, and raised between two calls.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

from pyspark.java_gateway import ensure_callback_server_started

from spark_streams.model.untyped import JavaObject

SIGNALS = ("TERM", "INT")
_TWICE = 1.0  # seconds: `timeout` and some supervisors tell the process and its group, which is one request


class Stop:
    """Whether the program has been asked to stop. A second signal to Python itself, a second later or more, ends it at
    once: by KeyboardInterrupt where it stands, or, where it waits for a query, at the next `check`."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._last: float | None = None  # when the signal that counts came to this process
        self._checks = False
        self._at_once = False
        self._then: list[Callable[[], None]] = []
        self._give_back: list[Callable[[], object]] = []

    @property
    def asked(self) -> bool:
        """Whether to come to an end."""
        return self._asked.is_set()

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Within, the program calls `check` again and again, between its calls to the JVM: what cuts one of those in
        two may leave its reply to the next one. A third signal does not wait for that."""
        self._checks = True
        try:
            yield
        finally:
            self._checks = False

    def check(self) -> None:
        """Raises KeyboardInterrupt where the program is to end at once."""
        if self._at_once:
            raise KeyboardInterrupt

    def then(self, call: Callable[[], None]) -> None:
        """Call this when the program is asked: from a signal handler, or another thread."""
        self._then.append(call)

    def listen(self, gateway: JavaObject = None) -> None:
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
        now = time.monotonic()
        if self._last is None:
            self._last = now
            self._ask()
        elif now - self._last > _TWICE:
            if not self._checks or self._at_once:
                raise KeyboardInterrupt
            self._last, self._at_once = now, True

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
