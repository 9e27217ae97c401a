"""Waiting for a query's end, and ending it between two batches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.model.untyped import JavaObject
from spark_streams.running.stopping import Stop
from spark_streams.spark.connect import is_of_connect

_LOOK = 0.2  # seconds
_GLANCE = 0.005  # seconds
_MOMENT = 2.0  # seconds: within these a trigger follows a batch, if one is due
_AT_LAST = 2.0  # seconds for Spark to stop the tasks of a batch


def wait_for_end(query: StreamingQuery, stop: Stop, look: Callable[[], None] = lambda: None) -> bool:
    """Until the query has ended, or is asked to. look: called again and again meanwhile.

    Whether it has ended. Raises what ended it (StreamingQueryException).
    """
    # Over Spark Connect one question that waits for the end, in place of one every moment, all of which its server
    # logs. So a signal is heard at once, too, while the client looks for a server that is away.
    has_ended = _Calling(query.awaitTermination).has_ended if is_of_connect(query) else query.awaitTermination
    with stop.checked():
        while not has_ended(_LOOK):  # type: ignore[arg-type]  # it takes fractions of a second
            look()
            if stop.asked:
                return False
    return True


class _Calling(threading.Thread):
    """A call that may take long, in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - it is raised where the end is waited for
            self._error = error

    def has_ended(self, seconds: float) -> bool:
        """Wait so long. Raises what ended it."""
        self.join(seconds)
        if self._error is not None:
            raise self._error
        return not self.is_alive()


def end_between_batches(query: StreamingQuery, patience: float, stop: Stop) -> bool:
    """Let the batch in flight finish, and end the query. patience: so many seconds may that take; then the batch is
    cut, and run again next time.

    Whether it was not cut. Raises what ended the query before (StreamingQueryException), and KeyboardInterrupt, behind
    which the query goes on, when the program is to end at once.
    """
    with stop.checked():
        return _end_between_batches(query, patience, stop.check)


def _end_between_batches(query: StreamingQuery, patience: float, check: Callable[[], None]) -> bool:
    deadline = time.monotonic() + patience
    before = _last(query)
    in_flight = False
    while query.isActive and query.status["isTriggerActive"] and _last(query) == before:
        in_flight = True
        if time.monotonic() > deadline:
            cut(query)
            return False
        check()
        time.sleep(_GLANCE)
    if in_flight or _last(query) != before:
        _wait_for_next_trigger(query, deadline, check)
    stopping = _Calling(query.stop)  # it waits for a batch that has just begun
    while not stopping.has_ended(_LOOK):
        check()
    error = query.exception()
    if error is not None:
        raise error
    return True


def cut(query: StreamingQuery) -> None:
    """End the query in the middle of a batch, which is run again next time. Spark stops the tasks of the batch. The
    function of a foreachBatch it cannot stop: one that goes on is not waited for, and ends with the program."""
    with _overflows_untold(query):
        ending = threading.Thread(target=query.stop, daemon=True)
        ending.start()
        ending.join(_AT_LAST)


@contextlib.contextmanager
def _overflows_untold(query: StreamingQuery) -> Iterator[None]:
    """Spark looks with a regular expression through what a function of foreachBatch says of its end when its tasks are
    stopped; that is long, the expression overflows the stack, and Java prints a thousand lines of it."""
    jvm = SparkContext._jvm
    if jvm is None:  # over Spark Connect: the server's log has them
        yield
        return
    threads = jvm.java.lang.Thread
    before = threads.getDefaultUncaughtExceptionHandler()
    threads.setDefaultUncaughtExceptionHandler(_Uncaught(f"runId = {query.runId}]", before))
    try:
        yield
    finally:
        threads.setDefaultUncaughtExceptionHandler(before)


class _Uncaught:
    """A Thread.UncaughtExceptionHandler of the JVM."""

    def __init__(self, thread: str, before: JavaObject) -> None:
        self._thread = thread
        self._before = before

    def uncaughtException(self, thread: JavaObject, error: JavaObject) -> None:
        if self._thread in thread.getName() and error.getClass().getSimpleName() == "StackOverflowError":
            return
        if self._before is not None:
            self._before.uncaughtException(thread, error)
        else:
            error.printStackTrace()

    class Java:
        implements = ["java.lang.Thread$UncaughtExceptionHandler"]


def _wait_for_next_trigger(query: StreamingQuery, deadline: float, check: Callable[[], None]) -> None:
    """Until the trigger after a batch that has ended has looked for entries: it acknowledges what the batch has read
    (docs/internals/facts.md, S4). It follows at once, or not before we would wait no more.

    The trigger of the batch tells of its end before it is over, and its status stays that of a batch meanwhile: the
    same words stand for the next one only behind a status between the two, or when they stay.
    """
    moment = time.monotonic() + _MOMENT
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
        check()
        time.sleep(_GLANCE)


def _last(query: StreamingQuery) -> object:
    """What changes with each batch that has ended."""
    progress = query.lastProgress
    return None if progress is None else (progress.batchId, progress.timestamp)
