"""The error's class and message come out of the texts that Spark gives."""

from __future__ import annotations

import pytest

from spark_streams.monitor.watch.failure import failure_of, may_be_caused_by_entry

PYTHON = """org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown \
from the Python worker: Traceback (most recent call last):
  File "job.py", line 27, in bad
    if n < 0: raise ValueError("n is below 0")
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: n is below 0
 SQLSTATE: 38000
	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
	at java.base/java.lang.Thread.run(Thread.java:840)
"""
CHAINED = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "job.py", line 3, in inner
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "job.py", line 5, in outer
    raise shop.errors.OrderError("no x\\nin it")
shop.errors.OrderError: no x
in it

	at org.apache.spark.api.python.X.y(X.scala:1)
Caused by: java.io.EOFException
"""
JAVA = """org.apache.spark.SparkException: Job aborted.
	at a.B.c(D.scala:1)
Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22
== SQL
	at a.B.c(D.scala:1)
	... 12 more
Caused by: java.lang.Deep: deeper
"""
CRASH = """org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
	at a.B.c(D.scala:1)
Caused by: java.io.EOFException
	at java.base/java.io.DataInputStream.readInt(DataInputStream.java:397)
"""


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (PYTHON, "ValueError", "n is below 0"),
        (CHAINED, "shop.errors.OrderError", "no x\nin it"),
        (JAVA, "org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22\n== SQL"),
        (CRASH, "org.apache.spark.SparkException", "Python worker exited unexpectedly (crashed)"),
        ("Traceback (most recent call last):\n  File\nStopIteration\n", "StopIteration", ""),
        ("something else entirely", "", "something else entirely"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_class_and_message(text: str, error: str, message: str) -> None:
    failure = failure_of(text)
    assert (failure.error, failure.message) == (error, message)


def test_what_no_entry_can_be_the_reason_of_is_known() -> None:
    assert may_be_caused_by_entry(PYTHON)
    assert may_be_caused_by_entry("x: [RSTREAM_DECODE] a value")
    assert not may_be_caused_by_entry("x: [RSTREAM_SERVER_UNREACHABLE] no stream server answers")
