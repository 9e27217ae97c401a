"""Why a query or a job has failed, as one line and as an error of ours: out of what Spark says, which is long."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spark_streams.errors import QueryError, RStreamError, find_in_text
from spark_streams.monitor.watch.failure import failure_of

_TRACEBACK = "Traceback (most recent call last):"
# How Java's exceptions name the one below them, and how py4j begins the text of one.
_CAUSE = re.compile(r"^(?:Caused by: |: )(\S.*)$", re.MULTILINE)
# SQLSTATE 42…: Spark does not understand a name or an expression, and says which; what caused that is its own affair.
_MISUNDERSTOOD = re.compile(r"\[[A-Z_.]+\].* SQLSTATE: 42")
# What the client of Spark Connect says of a call that its server did not answer.
_GRPC = re.compile(r'^\tdetails = "(.+)"$', re.MULTILINE)
# A Python that Spark has started is not the driver's own.
_LACKING = re.compile(r"^ModuleNotFoundError: No module named '(spark_streams|pyarrow|numpy|redis|hiredis)[.']")
_TO_INSTALL = (
    "; a Python that Spark runs (PYSPARK_PYTHON, on each machine) does not have it: install it there, or send it along "
    "(--archives; the package alone: --py-files)"
)
_LONGEST = 500  # characters of what others say


def one_line(error: BaseException) -> str:
    """Our own line if the error carries one, however deep; else the last line of a Python traceback in it, or the first
    line of what Spark says."""
    text = str(error)
    if find_in_text(text) is None and _TRACEBACK in text:
        failure = failure_of(text)
        line = f"{failure.error}: {' '.join(failure.message.split())}".removesuffix(": ")[:_LONGEST]
        return f"{line}{_TO_INSTALL if _LACKING.search(line) else ''}"
    causes = _CAUSE.findall(text) or [f"Spark Connect: {one}" for one in _GRPC.findall(text)]
    causes = [cause for cause in (first_line(error), *causes) if _MISUNDERSTOOD.search(cause)] or causes
    return find_in_text(text) or (causes[-1] if causes else f"{type(error).__name__}: {first_line(error)}")[:_LONGEST]


def first_line(error: BaseException) -> str:
    """What an exception says first."""
    return next(iter(str(error).strip().splitlines()), "no message")


def as_ours(error: BaseException) -> RStreamError:
    """The error of ours that this one carries, however deep: of its own class, with its message. Else a QueryError."""
    if isinstance(error, RStreamError):
        return error
    line = one_line(error)
    found = re.match(r"\[(\w+)\] ", line)
    kind = found and next((one for one in _all_of(RStreamError) if one.condition == found[1]), None)
    return kind(line[found.end() :]) if found and kind else QueryError(line)


def _all_of(kind: type[RStreamError]) -> Iterator[type[RStreamError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_of(below)
