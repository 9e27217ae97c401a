"""What a run does, chosen by its seed; the Spark driver that runs its query, a process that can be killed with its JVM
and all processes below them; and what the driver runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SCHEMA = "p STRING, n LONG, _stream STRING, _id STRING"
BAD = "none"  # a number that the schema cannot decode: the entry must become a dead letter


@dataclass(frozen=True)
class RunPlan:
    """What a run does."""

    prefix: str  # of all names, also the group's
    seed: int
    seconds: float  # of faults
    login: Mapping[str, str]  # options of source and sink
    spark_submit: str = ""  # command that starts a driver; empty: Spark of this Python
    fails_over: bool = False  # ask for failovers
    keeps: bool = False  # leave the keys
    has_engine: bool = False  # the server is an engine of this run
    one_slot: bool = False  # streams have one hash tag: behind one address may be several shards

    @property
    def streams(self) -> list[str]:
        return [self._stream("in:0"), self._stream("in:1")]

    @property
    def out(self) -> str:
        return self._stream("out")

    @property
    def dead(self) -> str:
        return self._stream("dead")

    def _stream(self, name: str) -> str:
        return f"{self.prefix}:{{run}}:{name}" if self.one_slot else f"{self.prefix}:{name}"

    def source(self) -> dict[str, str]:
        """Return the options of the source."""
        limit = self.chance("limit").choice([500, 1_000, 2_000])
        names = {"streams": ",".join(self.streams), "group": self.prefix, "deadLetterStream": self.dead, **self.login}
        choices = {"maxEntriesPerTrigger": str(limit), "ordered": "true", "mode": "DEADLETTER"}
        return {**names, **choices, "startingOffsets": "earliest"}

    def sink(self) -> dict[str, str]:
        """Return the options of the sink."""
        return {"stream": self.out, "chunkSize": str(self.chance("chunk").choice([100, 1_000, 5_000])), **self.login}

    def chance(self, use: str) -> random.Random:
        """Return a generator for one use, which the choices of other uses do not change."""
        return random.Random(f"{self.seed} {use}")


DRIVER = "driver"  # file with the process ID of the living driver
PATIENCE, QUIET = 300.0, 60.0  # seconds that anything may take on a busy machine; the same without a word about it


class Driver:
    """A driver in a session of its own. As a context manager it leaves no process behind.

    command: starts it in `folder`; environment: its whole environment; log: file of its output.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL the driver, its JVM, and all other processes of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        kill_session(self.process.pid)

    def log(self) -> str:
        """Return the end of the driver's output."""
        return self._log.read_text(errors="replace")[-4000:]


def kill_session(leader: int) -> None:
    """SIGKILL its processes. Python workers have their own process groups: they end without the JVM, but late."""
    deadline = time.monotonic() + PATIENCE
    while remaining := [pid for pid, _ in processes_of(leader)]:
        assert time.monotonic() < deadline, f"processes {remaining} do not end"
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def processes_of(leader: int) -> list[tuple[int, str]]:
    """Return pid and command line of every living process of a session. Only Linux lists them."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                processes.append((int(entry.name), command))
    return processes


_LOCAL = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it starts often
_LAUNCHER = "import pathlib, sys, spark_streams.operations.verify.running_query as p; p.run(pathlib.Path(sys.argv[1]))"


class RunningQuery(Driver):
    """The driver. environment: by which it reaches the server; drains: it reads everything and ends."""

    def __init__(self, plan: RunPlan, folder: Path, environment: Mapping[str, str], drains: bool = False) -> None:
        self._folder = folder
        for name in ("up", "error"):
            (folder / name).unlink(missing_ok=True)
        source = plan.source() | ({"maxEntriesPerTrigger": "10000"} if drains else {})  # much may be left
        told = {"parent": os.getpid(), "drains": drains, "source": source, "sink": plan.sink()}
        conf = {"spark.app.name": "rstream verify", **({} if plan.spark_submit else _LOCAL)}
        (folder / "plan.json").write_text(json.dumps({**told, "conf": conf}))
        (folder / "query.py").write_text(_LAUNCHER)
        command = [*(shlex.split(plan.spark_submit) or [sys.executable]), str(folder / "query.py"), str(folder)]
        environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, **environment}
        super().__init__(command, folder, environment, folder / "log.txt")
        (folder / DRIVER).write_text(str(self.process.pid))

    def kill(self) -> None:
        super().kill()
        (self._folder / DRIVER).unlink(missing_ok=True)

    @property
    def is_up(self) -> bool:
        """Whether the query has started."""
        return (self._folder / "up").exists()

    def end(self) -> str | None:
        """Return the error that ended the query, "" if there was none, or None while it runs."""
        if not self.process.poll():
            return None if self.process.returncode is None else ""
        error = self._folder / "error"
        return error.read_text() if error.exists() else f"no error, but this log: {' '.join(self.log().split())[-700:]}"

    def wait(self, seconds: float, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the condition is true, the query has ended, or the time is over. Return the condition."""
        deadline = time.monotonic() + seconds
        while not condition() and self.end() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return condition()


def run(folder: Path) -> None:
    """Run the query in the driver until its end, or until the process that started it has ended.

    folder: has `plan.json`, and receives `versions.json`, `up`, `checkpoint`, and `error` if the query fails.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    import spark_streams
    from spark_streams.connector.errors import find_in_text
    from spark_streams.connector.running.ending import Stop
    from spark_streams.connector.running.run import run_until_drained

    plan = json.loads((folder / "plan.json").read_text())
    spark = spark_streams.register(SparkSession.builder.config(map=plan["conf"]).getOrCreate())
    versions = {"Spark": spark.version, "Python": platform.python_version(), "master": spark.sparkContext.master}
    versions["Java"] = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
    (folder / "versions.json").write_text(json.dumps(versions))
    try:
        rows = spark.readStream.format("rstream").schema(SCHEMA).options(**plan["source"]).load()
        columns = rows.select("p", "n", F.col("_stream").alias("source"), F.col("_id").alias("entry"))
        writer = columns.writeStream.format("rstream").options(**plan["sink"])
        writer = writer.option("checkpointLocation", (folder / "checkpoint").as_uri())
        if plan["drains"]:
            writer = writer.trigger(availableNow=True)
            run_until_drained(writer.start(), writer.start, Stop())
            return
        query = writer.start()
        (folder / "up").touch()
        while not query.awaitTermination(1):
            os.kill(plan["parent"], 0)  # an error if that process has ended
    except Exception as error:
        (folder / "error").write_text(find_in_text(str(error)) or str(error)[:2_000])
        raise
