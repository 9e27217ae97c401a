"""Lines on standard error about a query that runs. An error is one line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_streams.connector.errors import QueryError, RStreamError
from spark_streams.connector.running.error_summary import to_rstream_error


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
    """Print a line to standard error, also if a terminal shows Spark's progress bar."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}{Path(sys.argv[0]).name or 'spark_streams'}: {line}", file=sys.stderr, flush=True)
