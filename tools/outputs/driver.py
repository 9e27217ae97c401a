"""Runs of jobs by their own program, one after the other, in one Spark session of this process; and of a rival."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_streams.jobs.command import program, run_job
from tools.outputs.strikes import SIZE

Config = dict[str, Any]
_STREAMING = "org.apache.spark.sql.execution.streaming.checkpointing"
SPARK = {
    "master": "local[1]",
    "spark.driver.memory": "600m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.daemon.module": "tools.python_daemon",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Java renames the files of checkpoints. Otherwise Hadoop starts eight processes for each of them.
    "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
}


class Outcome(NamedTuple):
    """How a run has ended."""

    code: int
    said: str


def run(job: str, file: Path, take_over: bool = False) -> Outcome:
    """Run a job to its end."""
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            run_job(
                program(job),
                config=str(file),
                settings=(),
                check=False,
                summary=None,
                traceback=False,
                take_over=take_over,
            )
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    return Outcome(code, said.getvalue().strip()[-1500:])


class Rival:
    """A second process with a Spark of its own. It is started when it is needed first."""

    process: subprocess.Popen[str] | None = None

    def run(self, job: str, file: Path) -> Outcome:
        """Run a job there."""
        if self.process is None:
            own = Path(os.environ["OUTPUTS_STATE"] + ".rival")
            own.write_bytes(bytes(SIZE))
            words = [sys.executable, "-m", "tools.outputs.driver"]
            environment = {**os.environ, "OUTPUTS_STATE": str(own)}
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([job, str(file)]), file=self.process.stdin, flush=True)
        return Outcome(*json.loads(next(line for line in self.process.stdout if line.startswith("["))))


@contextlib.contextmanager
def standing_still() -> Iterator[None]:
    """Stop the JVM and the Python workers for a block."""
    processes = [pid for pid, _ in _below()]
    for pid in processes:
        _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            _signal(pid, signal.SIGCONT)


def stop_queries() -> None:
    """Stop all queries of the session."""
    spark = SparkSession._instantiatedSession
    for query in [] if spark is None else spark.streams.active:
        query.stop()


def settle() -> None:
    """Leave nothing of a run: no query, no task, no worker."""
    context = SparkContext._active_spark_context
    if context is None:
        return
    stop_queries()
    context.cancelAllJobs()
    while context.statusTracker().getActiveJobsIds():
        time.sleep(0.02)
    for pid, is_worker in _below():
        if is_worker:
            _signal(pid, signal.SIGKILL)
    gc.collect()  # of connections to a catalog


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _below() -> list[tuple[int, bool]]:
    """Return the JVM and all that it has started; and whether a daemon of Python has forked it."""
    found = {os.getpid(): ("", 0)}
    processes: dict[int, tuple[str, int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{entry}/cmdline").read_text()
            processes[int(entry)] = command, int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    while more := {pid: one for pid, one in processes.items() if one[1] in found and pid not in found}:
        found |= {pid: one for pid, one in more.items() if "tools.outputs.driver" not in one[0]}
        processes = {pid: one for pid, one in processes.items() if pid not in more}
    del found[os.getpid()]
    return [
        (pid, "daemon" in command and "daemon" in found.get(parent, ("", 0))[0])
        for pid, (command, parent) in found.items()
    ]


if __name__ == "__main__":
    for request in sys.stdin:
        job_name, config_file = json.loads(request)
        print(json.dumps(run(job_name, Path(config_file))), flush=True)
