"""Queries in a process that is killed: a program calls `run`, and a test has it as a `Program`.

    python -m MODULE URL FOLDER NAME... [drain]

A NAME is that of a query, whose checkpoint is FOLDER/NAME. Without `drain` the queries run until somebody ends them;
with it to the end of what is there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tools.chaos.program import JAVA_OPTIONS
from tools.machine_time import wait_for_end

ROOT = Path(__file__).resolve().parents[2]
_DRAIN = "drain"
# It is given a session, the server's URL and the folder.
Query = Callable[[SparkSession, str, str], DataStreamWriter]


def run(queries: Mapping[str, Query]) -> None:
    """Run the queries that the command line names."""
    url, folder, *names = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 1)
        .config("spark.sql.streaming.pollingDelay", "100ms")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .getOrCreate()
    )
    placed = [
        queries[name](spark, url, folder).option("checkpointLocation", f"{folder}/{name}")
        for name in names
        if name != _DRAIN
    ]
    if _DRAIN in names:
        for query in [writer.trigger(availableNow=True).start() for writer in placed]:
            query.awaitTermination()
    else:
        for writer in placed:
            writer.trigger(processingTime="100 milliseconds").start()
        spark.streams.awaitAnyTermination()


class Program:
    """The process, which is started again and again. It writes what it says to FOLDER/said."""

    def __init__(self, module: str, url: str, folder: Path, names: Iterable[str]) -> None:
        self._words = [sys.executable, "-m", module, url, str(folder), *names]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
        with (self._folder / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [*self._words, *words],
                cwd=ROOT, env={**os.environ, **ours}, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        return self._process

    def drain(self, patience: float) -> None:
        """Run the queries to the end of what is there. patience: in machine seconds."""
        assert wait_for_end(self.start(_DRAIN), patience) == 0, self.said()

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and all Python workers at once, if they still run."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        return (self._folder / "said").read_text()[-3000:]

    def commits(self, query: str) -> int:
        """Return how many batches a query has committed."""
        return self._logged(query, "commits")

    def batches(self, query: str) -> int:
        """Return how many batches a query has begun."""
        return self._logged(query, "offsets")

    def _logged(self, query: str, log: str) -> int:
        return sum(file.name.isdigit() for file in (self._folder / query / log).glob("*"))
