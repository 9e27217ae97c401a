"""What a program that runs a query says of it on standard error: a line, and of an error no more than that."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_streams.errors import QueryError, RStreamError
from spark_streams.running.error_summary import as_ours


@contextlib.contextmanager
def errors_in_one_line(show: bool) -> Iterator[None]:
    """What goes wrong within is an error of ours, without Spark's stacks; a program that does not catch it ends with
    one line. show: with everything that led to it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        _one_line_for(interrupt, "stopped at once; what was read and not acknowledged is read again next time")
        raise
    except (PySparkException, Py4JError, RStreamError) as error:
        ours = as_ours(error)
        if show:
            raise ours from error
        if isinstance(ours, QueryError):
            ours = QueryError(f"{ours.message}; run(…, traceback=True) shows where")
        _one_line_for(ours, str(ours))
        raise ours from None


def _one_line_for(error: BaseException, line: str) -> None:
    """Python itself, where nothing catches this error, says this and no more. Its exit code stays what it is."""
    if not isinstance(sys.excepthook, _InOneLine):
        sys.excepthook = _InOneLine(sys.excepthook)
    sys.excepthook.error, sys.excepthook.line = error, line


class _InOneLine:
    """A sys.excepthook: tells one error in one line, all others as before."""

    def __init__(self, others: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._others = others
        self.error: BaseException | None = None
        self.line = ""

    def __call__(self, kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if error is self.error:
            say(self.line)
        else:
            self._others(kind, error, where)


def say(line: str) -> None:
    """On a line of its own, also where Spark's progress bar stands at a terminal."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}{Path(sys.argv[0]).name or 'spark_streams'}: {line}", file=sys.stderr, flush=True)
