"""The end of a query: requests to stop it, and the wait for its end between two batches."""

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
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.base.untyped import JavaObject
from spark_streams.connector.running.error_output import say
from spark_streams.connector.spark.running_pyspark import is_of_connect

# -- requests to stop: SIGTERM or SIGINT, to Python or to the JVM ------------------------------------------------------

# `spark-submit` is a JVM whose child is the Python that runs the program. A scheduler sends the signal to the JVM, a
# terminal to both processes. `python program.py` receives it directly. A JVM ends at SIGTERM, and the program with it.
# So its handler is replaced by one that only notifies Python, and the program then ends by itself.
#
# PySpark's handler of SIGINT cancels all tasks from within the current call to the JVM, which breaks the connection of
# that call (py4j). So it is replaced, too. For the same reason, a second Ctrl-C while the program waits for a query is
# only noted, and raised between two calls.

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
                before = jvm_signal.handle(jvm_signal(name), _SignalHandler(self._request))
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


class _SignalHandler:
    """A sun.misc.SignalHandler of the JVM."""

    def __init__(self, request: Callable[[], None]) -> None:
        self._request = request

    def handle(self, _signal: object) -> None:
        self._request()

    class Java:
        implements = ["sun.misc.SignalHandler"]


# -- the end of a query ------------------------------------------------------------------------------------------------

_POLL = 0.2  # seconds
_SHORT_POLL = 0.005  # seconds
_TRIGGER_DELAY = 2.0  # seconds: the next trigger starts within this time after a batch, if one is due
_STOP_TASKS = 2.0  # seconds for Spark to stop the tasks of a batch


def wait_for_end(query: StreamingQuery, stop: Stop, on_poll: Callable[[], None] = lambda: None) -> bool:
    """Wait until the query has ended or a stop is requested. Return whether it has ended.

    The query's name and checkpoint are free then: another run may start. on_poll: called repeatedly while the query
    runs. Raises the error that ended the query (StreamingQueryException).
    """
    # Over Spark Connect, one call waits for the end, because the server logs every call. It runs in another thread, so
    # that a signal is handled at once also while the client tries to reach the server.
    has_ended = _BackgroundCall(query.awaitTermination).has_ended if is_of_connect(query) else query.awaitTermination
    with stop.checked():
        while not has_ended(_POLL):  # type: ignore[arg-type]  # it takes fractions of a second
            on_poll()
            if stop.is_requested:
                return False
    if not is_of_connect(query):
        # A call with a timeout returns true already while Spark still releases the query's name (S89).
        query.awaitTermination()
    return True


class _BackgroundCall(threading.Thread):
    """A call in another thread, because it may take long."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - has_ended raises it
            self._error = error

    def has_ended(self, seconds: float) -> bool:
        """Wait for the end, at most this long. Return whether the call has ended. Raises the error of the call."""
        self.join(seconds)
        if self._error is not None:
            raise self._error
        return not self.is_alive()


def end_between_batches(query: StreamingQuery, patience: float, stop: Stop) -> bool:
    """Let the batch in flight finish, then end the query. Return whether the batch was finished.

    patience: after this many seconds the batch is cut; the next run runs it again. Raises an error that has ended the
    query before (StreamingQueryException). Raises KeyboardInterrupt, with the query still running, if the program is to
    end at once.
    """
    with stop.checked():
        deadline = time.monotonic() + patience
        before = _last_progress(query)
        in_flight = False
        while query.isActive and query.status["isTriggerActive"] and _last_progress(query) == before:
            in_flight = True
            if time.monotonic() > deadline:
                cut(query)
                return False
            stop.check()
            time.sleep(_SHORT_POLL)
        if in_flight or _last_progress(query) != before:
            _wait_for_next_trigger(query, deadline, stop)
        stopping = _BackgroundCall(query.stop)  # waits for a batch that has just begun
        while not stopping.has_ended(_POLL):
            stop.check()
        error = query.exception()
        if error is not None:
            raise error
        return True


def cut(query: StreamingQuery) -> None:
    """End the query in the middle of a batch, which the next run runs again.

    Spark stops the tasks of the batch. It cannot stop a function of foreachBatch, which ends with the program.
    """
    ending = threading.Thread(target=query.stop, daemon=True)
    ending.start()
    ending.join(_STOP_TASKS)


def _wait_for_next_trigger(query: StreamingQuery, deadline: float, stop: Stop) -> None:
    """Wait for the trigger after the batch. It acknowledges the entries of the batch (docs/internals/facts.md, S4).

    It follows at once, or only after the time that this function waits. A batch reports its progress before its trigger
    is over, and the status is unchanged until then. So the same status belongs to the next batch only after another
    status, or if it stays.
    """
    moment = time.monotonic() + _TRIGGER_DELAY
    is_over = False
    while query.isActive and time.monotonic() < deadline:
        status = query.status
        is_active, message = status["isTriggerActive"], str(status["message"])
        if message.startswith("Waiting for data"):
            return
        is_batch = is_active and message == "Processing new data"
        if is_batch and is_over:
            return
        is_over = is_over or not is_batch
        if time.monotonic() > moment and (is_batch or not is_active):
            return
        stop.check()
        time.sleep(_SHORT_POLL)


def _last_progress(query: StreamingQuery) -> object:
    """Return a value that changes with each completed batch."""
    progress = query.lastProgress
    return None if progress is None else (progress.batchId, progress.timestamp)
