"""Summarize an error of a query or a job as one line and as an RStreamError, from Spark's long error texts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spark_streams.connector.errors import QueryError, RStreamError, find_in_text
from spark_streams.connector.watch.failure import failure_of

# A module that is missing in a Python that Spark has started.
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(spark_streams|pyarrow|numpy|redis|hiredis)[.']")
_INSTALL_REMEDY = (
    "; the Python of Spark's workers (PYSPARK_PYTHON, on each machine) lacks it: install it there, or pass it "
    "with --archives (the package alone: --py-files)"
)
_MAX_LENGTH = 500  # characters of a text of Spark or Python


def one_line(error: BaseException) -> str:
    """Return the error as one line: the line of an RStreamError at any depth, else the cause."""
    text = str(error)
    if ours := find_in_text(text):
        return ours
    failure = failure_of(text)
    message = " ".join(failure.message.partition(";\n")[0].split())  # Spark's plan follows
    line = f"{failure.error or type(error).__name__}: {message or 'no message'}"[:_MAX_LENGTH]
    return f"{line}{_INSTALL_REMEDY if _MISSING_MODULE.search(line) else ''}"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text."""
    return next(iter(str(error).strip().splitlines()), "no message")


def to_rstream_error(error: BaseException) -> RStreamError:
    """Return the RStreamError at any depth of this error, with its class and message, else a QueryError."""
    if isinstance(error, RStreamError):
        return error
    line = one_line(error)
    condition = re.match(r"\[(\w+)\] ", line)
    error_class = condition and next(
        (candidate for candidate in _with_subclasses(RStreamError) if candidate.condition == condition[1]), None
    )
    return error_class(line[condition.end() :]) if condition and error_class else QueryError(line)


def _with_subclasses(kind: type[RStreamError]) -> Iterator[type[RStreamError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)
