"""What is kept from the screen while a query runs is as it was afterwards."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from pyspark.logger import PySparkLogger
from spark_streams.connector.running import error_output as spark_log_filter

for give_back in spark_log_filter.disable_python_loggers():
    give_back()
for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(name).error("told", errorClass="X")
"""


def test_pyspark_may_log_its_errors_afterwards() -> None:
    """Also where it has logged none before: its loggers are of a class of its own."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("told") == 2


AT_THE_END = """
import logging
from spark_streams.connector.running import error_output as spark_log_filter

log = logging.getLogger("py4j.clientserver")
log.info("opening")
{calls}
taken = {{name: vars(logging)[name] for name in ("_lock", "_acquireLock") if name in vars(logging)}}
vars(logging).update(dict.fromkeys(taken))  # as Python does at its end, module by module
log.info("closing")  # as py4j does when a connection is collected
vars(logging).update(taken)
"""


def test_nothing_is_logged_during_interpreter_shutdown() -> None:
    """py4j's connections are closed that late, and log it: where logging has forgotten its levels, that fails."""
    for calls in (
        "[give_back() for give_back in spark_log_filter.disable_python_loggers()]",
        "spark_log_filter.disable_python_loggers()",
    ):
        program = AT_THE_END.format(calls=calls)
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
