"""Lines on standard error about a query that runs. An error is one line: what would repeat it is silenced."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from spark_streams.base.printable import printable_lines
from spark_streams.base.untyped import JavaObject
from spark_streams.connector.errors import QueryError, RStreamError
from spark_streams.connector.watch.failure import to_rstream_error

# -- the JVM's and Python's loggers that repeat the error of a query, each time with stack traces ----------------------

# The program that runs the query prints the error as one line. For the jobs, conf/log4j2.properties silences the same
# loggers from the start of the JVM.

# Loggers of the JVM. About a query, they log failed and stopped tasks, and the end of the query.
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
# Loggers of Python. PySpark logs errors that it raises, with Java's stack; py4j logs errors of foreachBatch functions.
_OF_PYSPARK = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_OF_PY4J = "py4j.clientserver"
_LATE_LOGS = 10.0  # seconds: Spark's scheduler and last tasks may log a failure or a stop this long afterwards


class _LogFilter:
    """Silences the loggers once, for any number of queries, and restores them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._restore_calls: list[Callable[[], object]] = []
        self._late: threading.Timer | None = None

    def begin(self, context: SparkContext | None) -> None:
        with self._lock:
            if self._late is not None:
                self._late.cancel()
                self._late = None
            if not self._restore_calls:
                self._restore_calls = disable_python_loggers()
                if context is not None:
                    self._restore_calls += _disable_jvm_loggers(context._jvm)

    def end(self) -> None:
        with self._lock:
            self._late = None
            while self._restore_calls:
                # If the gateway is closed, there is no logger to restore.
                with contextlib.suppress(Py4JError, OSError):
                    self._restore_calls.pop()()

    def end_late(self) -> None:
        with self._lock:
            self._late = threading.Timer(_LATE_LOGS, self.end)
            self._late.daemon = True
            self._late.start()


_log_filter = _LogFilter()


@contextlib.contextmanager
def filtered_spark_log(context: SparkContext | None, enabled: bool = True) -> Iterator[Callable[[], None]]:
    """Silence these loggers within the block, if enabled, and restore them at its end.

    They are restored later if the block ends with an error, or if it has called the function that it receives.
    context: None over Spark Connect, whose server has its own log.
    """
    ends_late = threading.Event()
    if not enabled:
        yield ends_late.set
        return
    _log_filter.begin(context)
    try:
        yield ends_late.set
    except BaseException:
        ends_late.set()
        raise
    finally:
        if ends_late.is_set():
            _log_filter.end_late()
        else:
            _log_filter.end()


def disable_python_loggers() -> list[Callable[[], object]]:
    """Silence the loggers of Python. Return the calls that restore them."""
    # PySparkLogger.getLogger, because a logger that PySpark has not made itself rejects PySpark's arguments.
    loggers = [*[PySparkLogger.getLogger(name) for name in _OF_PYSPARK], logging.getLogger(_OF_PY4J)]
    # `disabled` and not a level: setting a level clears the level cache of all loggers. py4j's logger is used once more
    # after Python has cleared its modules, and would then raise a TypeError without its cached level.
    restore_calls: list[Callable[[], object]] = [
        partial(setattr, logger, "disabled", logger.disabled) for logger in loggers
    ]
    for logger in loggers:
        logger.disabled = True
    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    return [*restore_calls, partial(root.removeFilter, _is_no_interrupt)]


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Reject py4j's record of a Ctrl-C during a call, which has a stack trace."""
    return record.msg != "KeyboardInterrupt while sending command."


def _disable_jvm_loggers(jvm: JavaObject) -> list[Callable[[], object]]:
    log4j = jvm.org.apache.logging.log4j
    try:
        context = log4j.LogManager.getContext(False)
        config = context.getConfiguration()
        set_level = log4j.core.config.Configurator.setLevel
        loggers = config.getLoggers()
        restore_calls: list[Callable[[], object]] = [context.updateLoggers]
        for name in REPEATING:
            has_logger = name in loggers
            restore = (
                partial(set_level, name, loggers[name].getLevel()) if has_logger else partial(config.removeLogger, name)
            )
            restore_calls.append(restore)
        for name in REPEATING:
            set_level(name, log4j.Level.OFF)
    except Py4JError:  # another logging library than Spark's own: its loggers are unchanged
        return []
    return restore_calls


# -- the error of a query in one line ----------------------------------------------------------------------------------


@contextlib.contextmanager
def errors_in_one_line(show: bool) -> Iterator[None]:
    """Convert errors of the block to RStreamError without Spark's stack traces.

    A program that does not catch the error ends with one line. show: keep the traceback and the cause.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        _print_as_one_line(interrupt, "stopped at once; the next run reads entries again that were not acknowledged")
        raise
    except (PySparkException, Py4JError, RStreamError) as error:
        rstream_error = to_rstream_error(error)
        if show:
            raise rstream_error from error
        if isinstance(rstream_error, QueryError):
            rstream_error = QueryError(f"{rstream_error.message}; run(…, traceback=True) shows the traceback")
        _print_as_one_line(rstream_error, str(rstream_error))
        raise rstream_error from None


def _print_as_one_line(error: BaseException, line: str) -> None:
    """Make Python print only this line if nothing catches the error. The exit code does not change."""
    if not isinstance(sys.excepthook, _OneLineHook):
        sys.excepthook = _OneLineHook(sys.excepthook)
    sys.excepthook.error, sys.excepthook.line = error, line


class _OneLineHook:
    """A sys.excepthook that prints one error as one line, and passes other errors to the previous hook."""

    def __init__(
        self, default_hook: Callable[[type[BaseException], BaseException, TracebackType | None], object]
    ) -> None:
        self._default_hook = default_hook
        self.error: BaseException | None = None
        self.line = ""

    def __call__(self, kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if error is self.error:
            say(self.line)
        else:
            self._default_hook(kind, error, where)


def say(line: str) -> None:
    """Print a line of this program to standard error."""
    print_error(f"{Path(sys.argv[0]).name or 'spark_streams'}: {line}")


def print_error(lines: str) -> None:
    """Print lines to standard error, also if a terminal shows Spark's progress bar. It obeys nothing in them."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}{printable_lines(lines)}", file=sys.stderr, flush=True)
