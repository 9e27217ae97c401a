"""The main job goes on from its checkpoint under the next Spark, and under that one's next: killed in the middle of a
batch by each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from tools.machine_time import wait_for_end
from tools.once import once
from tools.servers.server import Server
from tools.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.upgrade]

# Where scripts/test sets them up; the last is the one of this Python.
SPARKS = {name: Path(sys.prefix) / f"spark-{name}" / "bin" / "python" for name in ("4.0", "4.1", "4.2")}
EACH = 400  # entries that come while one Spark runs; every tenth is bad
PATIENCE = 240.0  # seconds

CONFIG = """
[source]
streams = "in"
group = "etl"
startingOffsets = "earliest"
maxEntriesPerTrigger = 50
entriesPerPartition = 25
[columns]
n = "INT"
[table]
path = "{folder}/table"
[[output]]
name = "next"
[output.sink]
stream = "out"
[dead_letters]
stream = "dead"
[job]
checkpoint = "{folder}/checkpoint"
[spark]
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.sql.shuffle.partitions" = 2
"""


class Job:
    """`rstream run etl` under one Python's Spark."""

    def __init__(self, python: Path, folder: Path, url: str) -> None:
        self.output_file = folder / "said"
        environment = {**os.environ, "RSTREAM_URL": url, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
        for name in ("PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_SUBMIT_OPTS"):
            environment.pop(name, None)
        command = [
            str(python),
            "-m",
            "spark_streams.cli",
            "run",
            "etl",
            "--config",
            str(folder / "etl.toml"),
        ]
        with self.output_file.open("ab") as said:
            self.process = subprocess.Popen(command, stderr=said, stdout=said, env=environment, start_new_session=True)

    def kill_when(self, condition: Callable[[], bool], message: str) -> None:
        log, lives = self.output_file.read_text, lambda: self.process.poll() is None
        until(condition, message, PATIENCE, alive=lives, log=log, interval=0.005)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        assert wait_for_end(self.process, PATIENCE) == 0, self.output_file.read_text()[-3000:]


def version(python: Path) -> str:
    code = "import pyspark; print(pyspark.__version__)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_job_goes_on_under_the_next_spark(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = [name for name, python in SPARKS.items() if not python.exists()]
    if missing:
        pytest.skip(f"no Spark {', '.join(missing)}: scripts/test --upgrade sets them up")
    (tmp_path / "etl.toml").write_text(CONFIG.format(folder=tmp_path))
    client: Any = server.client(decode_responses=True)
    for round_, python in enumerate([*SPARKS.values(), Path(sys.executable)]):
        for n in range(round_ * EACH, (round_ + 1) * EACH):
            client.xadd("in", {"n": n if n % 10 else f"bad {n}"})
        before, there = client.xlen("out"), (round_ + 1) * EACH
        job = Job(python, tmp_path, server.url)
        job.kill_when(lambda before=before: client.xlen("out") >= before + 150, "150 more entries are not written")  # type: ignore[misc]
        held = client.xpending("in", "etl")["pending"]
        with capsys.disabled():
            done = f"killed at {client.xlen('out')} of {there * 9 // 10}, {held} pending"
            print(f"\nSpark {version(python)} on {server.kind}: {done}")
        assert client.xlen("out") < there * 9 // 10, "it was killed in the middle"
    Job(Path(sys.executable), tmp_path, server.url).finish()

    good = [n for n in range(4 * EACH) if n % 10]
    table = pyarrow.dataset.dataset(tmp_path / "table", partitioning="hive").to_table()
    for rows in ([int(fields["n"]) for _, fields in client.xrange("out")], table.column("n").to_pylist()):
        assert not (judgement := once(good, rows)), judgement
    dead = [fields["n"] for _, fields in client.xrange("dead")]
    assert not (judgement := once((f"bad {n}" for n in range(0, 4 * EACH, 10)), dead)), judgement
    assert client.xpending("in", "etl")["pending"] == 0
