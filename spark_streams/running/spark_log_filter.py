"""While a query runs: what Spark logs of its end again and again, each time with every stack, is kept from the screen.

What ends a query reaches whoever runs it, who says it in one line. For the jobs conf/log4j2.properties does the same,
from the JVM's start on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.logger import PySparkLogger

from spark_streams.model.untyped import JavaObject

# Of the JVM: what they log of a query is a task that failed or was stopped, and how the query came to its end.
REPEATING = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.DAGScheduler",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",  # Spark 4.0
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.storage.ShuffleBlockFetcherIterator",
    "org.apache.spark.util.Utils",
)
# Of Python: PySpark logs an error that it raises, with the whole Java stack; py4j one of a function of foreachBatch.
_OF_PYSPARK = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_OF_PY4J = "py4j.clientserver"
_LATE = 10.0  # seconds: so long after a failure, or a stop, Spark's scheduler and last tasks may log of it


class _Quiet:
    """What is turned off, and how it is given back: once, however many queries run one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._give_back: list[Callable[[], object]] = []
        self._later: threading.Timer | None = None

    def begin(self, context: SparkContext | None) -> None:
        with self._lock:
            if self._later is not None:
                self._later.cancel()
                self._later = None
            if not self._give_back:
                self._give_back = _turned_off_here()
                if context is not None:
                    self._give_back += _turned_off_in(context._jvm)

    def end(self) -> None:
        with self._lock:
            self._later = None
            while self._give_back:
                # A gateway that is closed by now has nothing to give back to.
                with contextlib.suppress(Py4JError, OSError):
                    self._give_back.pop()()

    def end_later(self) -> None:
        with self._lock:
            self._later = threading.Timer(_LATE, self.end)
            self._later.daemon = True
            self._later.start()


_quiet = _Quiet()


@contextlib.contextmanager
def quietened(context: SparkContext | None, wanted: bool = True) -> Iterator[Callable[[], None]]:
    """These loggers are silent, if that is wanted; afterwards they are as they were: a little later where this ends
    with an error, or what is given was called. context: None over Spark Connect, whose server has its own log."""
    late = threading.Event()
    if not wanted:
        yield late.set
        return
    _quiet.begin(context)
    try:
        yield late.set
    except BaseException:
        late.set()
        raise
    finally:
        if late.is_set():
            _quiet.end_later()
        else:
            _quiet.end()


def quieten_python() -> None:
    """Those of Python, for good."""
    _turned_off_here()


def _turned_off_here() -> list[Callable[[], object]]:
    # By PySpark: a logger that it did not make itself does not take what PySpark tells it, for as long as Python runs.
    loggers = [*[PySparkLogger.getLogger(name) for name in _OF_PYSPARK], logging.getLogger(_OF_PY4J)]
    # Not by a level: then all loggers forget which levels they have, and py4j's, which is asked for the last time when
    # Python has taken its modules apart, finds none (a TypeError on the screen, behind everything else).
    give_back: list[Callable[[], object]] = [partial(setattr, one, "disabled", one.disabled) for one in loggers]
    for one in loggers:
        one.disabled = True
    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    return [*give_back, partial(root.removeFilter, _is_no_interrupt)]


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """py4j tells of a Ctrl-C in the midst of a call, with the stack."""
    return record.msg != "KeyboardInterrupt while sending command."


def _turned_off_in(jvm: JavaObject) -> list[Callable[[], object]]:
    log4j = jvm.org.apache.logging.log4j
    try:
        context = log4j.LogManager.getContext(False)
        config = context.getConfiguration()
        set_level = log4j.core.config.Configurator.setLevel
        known = config.getLoggers()
        give_back: list[Callable[[], object]] = [context.updateLoggers]
        for name in REPEATING:
            had = name in known
            back = partial(set_level, name, known[name].getLevel()) if had else partial(config.removeLogger, name)
            give_back.append(back)
        for name in REPEATING:
            set_level(name, log4j.Level.OFF)
    except Py4JError:  # another logging library than Spark's own: its lines stay
        return []
    return give_back
