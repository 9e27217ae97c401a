"""Of what Spark says of an error, one line, and the error of ours that it carries."""

from __future__ import annotations

import pytest

from spark_streams.connector.errors import DecodeError, QueryError, RStreamError, ServerUnreachableError
from spark_streams.connector.watch.failure import one_line, to_rstream_error

STACK = "\n\tat org.apache.spark.Some.thing(Some.scala:1)\n\tat java.base/java.lang.Thread.run(Thread.java:840)"
TRACEBACK = 'Traceback (most recent call last):\n  File "/a/b.py", line 1, in f\n    g()\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # Ours, raised in a task, however deep.
        (
            f"[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted{STACK}\nCaused by: a.b.C: "
            f"{TRACEBACK}a.DecodeError: [RSTREAM_DECODE] entry 1-0: no number\n SQLSTATE: 38000{STACK}",
            "[RSTREAM_DECODE] entry 1-0: no number",
        ),
        # A function of the query's own.
        (
            f"[FOREACH_BATCH_USER_FUNCTION_ERROR] An error{STACK}\n{TRACEBACK}KeyError: 'x'{STACK}",
            "KeyError: 'x' (/a/b.py:1 in f)",
        ),
        # Java's: the last cause says most,
        (
            f"An error occurred.\n: a.b.Outer: Job aborted{STACK}\nCaused by: a.b.Inner: disk full{STACK}",
            "a.b.Inner: disk full",
        ),
        # but for a name that Spark does not know.
        (
            f"An error occurred.\n: a.b.NotFound: [DATA_SOURCE_NOT_FOUND] No source: x. SQLSTATE: 42K02{STACK}\n"
            f"Caused by: java.lang.ClassNotFoundException: x.DefaultSource{STACK}",
            "a.b.NotFound: [DATA_SOURCE_NOT_FOUND] No source: x. SQLSTATE: 42K02",
        ),
        # Spark Connect begins with what it says, and its client tells of a server that is away.
        (
            "(a.b.NotFound) [DATA_SOURCE_NOT_FOUND] No source: x. SQLSTATE: 42K02\n\nJVM stacktrace:\na.b.NotFound"
            f"{STACK}\nCaused by: java.lang.ClassNotFoundException: x.DefaultSource{STACK}",
            "a.b.NotFound: [DATA_SOURCE_NOT_FOUND] No source: x. SQLSTATE: 42K02",
        ),
        (
            "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
            '\tdetails = "failed to connect to all addresses"\n\tdebug_error_string = "UNAVAILABLE:failed"\n>',
            "Spark Connect: failed to connect to all addresses",
        ),
        # What an executor lacks, with what to do.
        (
            f"[STREAM_FAILED] Query{STACK}\n{TRACEBACK}ModuleNotFoundError: No module named 'spark_streams'\n{STACK}",
            "ModuleNotFoundError: No module named 'spark_streams' (/a/b.py:1 in f); the Python of Spark's workers "
            "(PYSPARK_PYTHON, on each machine) lacks it: install it there, or pass it with --archives "
            "(the package alone: --py-files)",
        ),
        (
            f"[STREAM_FAILED] Query{STACK}\n{TRACEBACK}ModuleNotFoundError: No module named 'mine'\n{STACK}",
            "ModuleNotFoundError: No module named 'mine' (/a/b.py:1 in f)",
        ),
        # What a query that ended says, without the query's numbers; a wrapper of the cause.
        (
            f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: requirement failed: odd{STACK}",
            "Exception: requirement failed: odd",
        ),
        (
            f"[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted{STACK}\nCaused by: a.b.C: "
            f"[TASK_WRITE_FAILED] Task failed while writing rows to x.{STACK}\nCaused by: "
            f"java.io.IOException: disk full{STACK}",
            "java.io.IOException: disk full",
        ),
        ("only this", "Exception: only this"),
    ],
)
def test_one_line_says_what_was_wrong(text: str, line: str) -> None:
    assert one_line(Exception(text)) == line


def test_an_error_that_spark_carries_is_ours_again() -> None:
    found = to_rstream_error(Exception(f"Job aborted{STACK}\n[RSTREAM_DECODE] entry 1-0: no number\n SQLSTATE: 38000"))
    assert (type(found), found.message) == (DecodeError, "entry 1-0: no number")
    found = to_rstream_error(Exception("[RSTREAM_SERVER_UNREACHABLE] nobody there"))
    assert (type(found), str(found)) == (ServerUnreachableError, "[RSTREAM_SERVER_UNREACHABLE] nobody there")


def test_other_errors_are_reported_as_those_of_the_query() -> None:
    found = to_rstream_error(Exception("[RSTREAM_OF_LATER] a condition that this version does not know"))
    assert (type(found), found.condition) == (QueryError, "RSTREAM_QUERY")
    assert str(to_rstream_error(ValueError("odd"))) == "[RSTREAM_QUERY] ValueError: odd"
    ours = RStreamError("as it is")
    assert to_rstream_error(ours) is ours
