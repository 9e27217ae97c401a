"""What is kept from the screen while a query runs is as it was afterwards."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from pyspark.logger import PySparkLogger
from spark_streams.running import quiet

for give_back in quiet._turned_off_here():
    give_back()
for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(name).error("told", errorClass="X")
"""


def test_pyspark_may_log_its_errors_afterwards() -> None:
    """Also where it has logged none before: its loggers are of a class of its own."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("told") == 2
