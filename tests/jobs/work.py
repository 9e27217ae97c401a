"""What the tests of the jobs share: a folder with a job's output, command lines, the flights of the sample."""

from __future__ import annotations

import csv
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyspark
import pytest

from tools.machine_time import wait_for_end
from tools.servers.server import Server
from tools.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "data" / "flights_sample.csv"
CONF = ROOT / "conf"
LOG4J = CONF / "log4j2.properties"
PATIENCE = 240.0  # machine seconds
NEW_SESSION = ["new session"]  # in the place of a job: the ones behind it do not share a session with those before it

# Small and quick to start: these sessions live for seconds.
SUBMIT = (
    "--properties-file", "conf/spark-defaults.conf", "--conf", "spark.ui.enabled=false",
    "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.sql.streaming.pollingDelay=100ms",
    "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    f"-Dlog4j2.configurationFile={LOG4J}",
)  # fmt: skip


@dataclass
class Running:
    """A process that runs jobs, one after the other."""

    process: subprocess.Popen[bytes]
    folder: Path
    plan: Sequence[Sequence[str]]

    @property
    def jobs(self) -> int:
        return len(self.plan)

    @property
    def output_file(self) -> Path:
        return self.folder / "said"

    def wait_until(self, condition: Callable[[], object], message: str) -> None:
        until(condition, message, PATIENCE, alive=lambda: self.process.poll() is None, log=self.output_file.read_text)

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and all Python workers at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM for spark-submit alone, as a scheduler does it."""
        self.process.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT for the process group, as a terminal does it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, number: int) -> str:
        """What a job ended with; '' while it has not."""
        file = self.folder / f"{number}.ended"
        return file.read_text() if file.exists() else ""

    def finish(self) -> None:
        """All jobs end well."""
        try:
            wait_for_end(self.process, PATIENCE)
        finally:
            if self.process.poll() is None:
                self.kill()
        codes = [self.ended(number) for number in range(self.jobs)]
        assert codes == ["0"] * self.jobs, self.output_file.read_text()[-3000:]


@dataclass
class Work:
    """A folder with its own output, and the settings that point the sample configurations at it."""

    folder: Path
    server: Server
    runs: list[Running] = field(default_factory=list)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            if run.process.poll() is None:
                run.kill()

    def arguments(self, job: str, *settings: str) -> list[str]:
        """A job's name and its arguments. Its summary goes to <folder>/<job>.json."""
        checkpoint = f"job.checkpoint={self.folder}/checkpoints/{job}"
        places = {
            "load": [f"input.path={SAMPLE}", checkpoint],
            "etl": [f"table.path={self.folder}/flights", checkpoint],
            "aggregate": [checkpoint],
            "archive": [f"table.path={self.folder}/archive", checkpoint],
            "reprocess_dead_letters": [],
        }
        words = [job, "--config", f"{CONF}/{job}.toml", "--summary", f"{self.folder}/{job}.json"]
        for setting in (*places[job], *settings):
            words += ["--set", setting]
        return words

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {
            # Without a SPARK_HOME spark-submit has a Python of its own look for it.
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            **os.environ, "RSTREAM_URL": self.server.url, "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path,
        }  # fmt: skip

    def start(self, *jobs: Sequence[str], submit: Sequence[str] = SUBMIT, by: Sequence[str] = ()) -> Running:
        """spark-submit these jobs, one after the other. by: words of a program that starts spark-submit."""
        place = self.folder / f"run{len(self.runs)}"
        place.mkdir(parents=True)
        (place / "plan.json").write_text(json.dumps(jobs))
        program = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        words = [*by, program, *submit, "tests/jobs/runner.py", str(place / "plan.json"), str(place)]
        with (place / "said").open("wb") as said:
            process = subprocess.Popen(
                words, cwd=ROOT, env=self.environment(), stdout=said, stderr=said, start_new_session=True
            )
        self.runs.append(Running(process, place, jobs))
        return self.runs[-1]

    def alone(self, job: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A job by Python, which is quicker where no session is needed. words: settings, and arguments (`--…`)."""
        name, *arguments = self.arguments(job, *[word for word in words if not word.startswith("--")])
        command = [sys.executable, f"jobs/{name}.py", *arguments, *[word for word in words if word.startswith("--")]]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def summary(self, job: str) -> dict[str, object]:
        """What the job said at its last end."""
        told: dict[str, object] = json.loads((self.folder / f"{job}.json").read_text())
        return told

    def committed(self, job: str, number: int) -> bool:
        """Whether this batch is in the commit log."""
        return (self.folder / "checkpoints" / job / "commits" / str(number)).exists()

    def forget_last_commit(self, job: str) -> None:
        """The commit log does not have the last batch."""
        commits = self.folder / "checkpoints" / job / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink()

    def parquet(self, name: str) -> pa.Table:
        """All rows that a job has written."""
        return pyarrow.dataset.dataset(self.folder / name, partitioning="hive").to_table()


def call(monkeypatch: pytest.MonkeyPatch, job: str, *words: str) -> int:
    """The exit code of a job that is run in this process, which is quick; for what ends before Spark is started."""
    monkeypatch.setattr("sys.argv", [f"{job}.py", *words])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    folder = ROOT / "examples" / "flights" if job == "demo" else ROOT / "jobs"
    try:
        runpy.run_path(str(folder / f"{job}.py"), run_name="__main__")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0


def sample() -> list[dict[str, str]]:
    with SAMPLE.open(newline="") as lines:
        return list(csv.DictReader(lines))


KEY = ("month", "day", "sched_dep_time", "carrier", "flight", "origin")
