"""The error's class and message come out of the texts that Spark gives."""

from __future__ import annotations

import time

import pytest

from spark_streams.connector.watch.failure import failure_of, may_be_caused_by_entry, one_line

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

UPDATE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: requirement failed: rstream does not \
support Update mode. SQLSTATE: XXKST
=== Streaming Query ===
"""
OFFSET = (
    '{"format": 1, "group": "g", "consumer": "spark", "token": "5c46", "streams": {"a": "1-0 1.5c45 1 1", '
    '"orders": "1-0 1.5c46 2 2", "p": "1-0 1.5c46 1 1"}, "batch": {"orders": "0-0 1-0 2 9", "p": "0-0 1-0 1 9"}}'
)
PREFERRED = (
    "Spark writes to format rstream in output mode append or complete, not update. To write each changed row of an "
    "aggregation, keep outputMode('update') and write in foreachBatch: rows.write.format('rstream'), with option "
    "transaction"
)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (PYTHON, "ValueError", "n is below 0 (job.py:27 in bad)"),
        (CHAINED, "shop.errors.OrderError", "no x\nin it (job.py:5 in outer)"),
        (JAVA, "org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22\n== SQL"),
        (UPDATE, "UnsupportedOutputMode", f"{PREFERRED} to write each row once"),
        ("Traceback (most recent call last):\n  File\nStopIteration\n", "StopIteration", ""),
        ("something else entirely", "", "something else entirely"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_class_and_message(text: str, error: str, message: str) -> None:
    failure = failure_of(text)
    assert (failure.error, failure.message) == (error, message)


def test_the_frame_is_of_the_users_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the working directory; none of Spark's, of this package's or of another package's."""
    monkeypatch.chdir("/")
    text = """Traceback (most recent call last):
  File "/jobs/pay.py", line 41, in price
    return rates.get(code)
  File "/usr/lib/python3.11/site-packages/rates/__init__.py", line 3, in get
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 9, in main
  File "<frozen runpy>", line 88, in _run_code
KeyError: 'EUR'
"""
    assert failure_of(text).message == "'EUR' (jobs/pay.py:41 in price)"


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ("", "rows. Causes are"),
        (
            f"\n=== Streaming Query ===\nx: {OFFSET}",
            "rows of stream 'orders' and 1 more.",
        ),
        (
            ": Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
            '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
            '  File "/jobs/pay.py", line 41 in price\n  File "/jobs/pay.py", line 9 in outer\n',
            "rows in /jobs/pay.py:41 in price.",
        ),
    ],
)
def test_a_worker_that_ended_is_named(after: str, named: str) -> None:
    failure = failure_of(CRASH + after)
    assert failure.error == "PythonWorkerEnded"
    assert f"a Python process of Spark ended while it read or processed {named}" in failure.message
    assert failure.message.endswith("set maxDeliveries")


@pytest.mark.parametrize(
    "text",
    [
        # Spark 4.3, after the source's own process was killed: in `awaitTermination`, and in the event of its end.
        f"[STREAM_FAILED] Query [id = 1] terminated with exception:  SQLSTATE: XXKST\n== Query ==\n{OFFSET}",
        "java.io.EOFException\n\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:397)\n",
    ],
)
def test_a_source_process_that_ended_is_named_though_spark_says_nothing(text: str) -> None:
    failure = failure_of(text)
    assert failure.error == "PythonWorkerEnded"
    assert "while it read or processed rows" in failure.message


@pytest.mark.parametrize(
    "text",
    [
        # Spark 4.3, without its daemon (the source's own process) and with it.
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back.\n"
        "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back",
        "x: Timed out while waiting for the Python worker to connect back after 60000 ms",
        "a.b.StreamingPythonRunner$StreamingPythonRunnerInitializationTimeoutException: Python process is late",
    ],
)
def test_a_worker_that_was_too_late_may_be_started_again(text: str) -> None:
    failure = failure_of(text)
    assert failure.error == "PythonWorkerTooLate"
    assert failure.message.endswith("No entry is lost. Start the query again: it continues where it was")


def test_what_no_entry_can_be_the_reason_of_is_known() -> None:
    assert may_be_caused_by_entry(PYTHON)
    assert may_be_caused_by_entry("x: [RSTREAM_DECODE] a value")
    assert not may_be_caused_by_entry("x: [RSTREAM_SERVER_UNREACHABLE] no stream server answers")


@pytest.mark.parametrize("value", ["\n" * 200_000, "\n\t" * 100_000, "\n at" * 50_000])
def test_white_space_of_an_entry_delays_no_error(value: str) -> None:
    """Spark's error has the value that a cast refused. Time that grows with the square takes minutes here."""
    text = f"org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value '{value}' is no INT"
    begun = time.process_time()
    assert failure_of(text).error == "org.apache.spark.SparkNumberFormatException"
    assert "[CAST_INVALID_INPUT] The value ' " in one_line(RuntimeError(text))
    assert time.process_time() - begun < 2
