"""A standalone cluster of this machine: Spark's master and workers, as processes of the pip package.

A machine is one core here, so that two executors are on two workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from tools.servers.server import free_port
from tools.waiting import until

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE = 240.0  # seconds, for anything that must come about
EXECUTOR_MEMORY = "640m"
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


@dataclass
class Daemon:
    """A master or a worker."""

    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> None:
        """It and all that it has started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Executor:
    """A running executor: its number in its application, its JVM, the place of its worker among the cluster's."""

    number: str
    pid: int
    worker: int


@dataclass
class Cluster:
    """folder: where the daemons and their executors write."""

    folder: Path
    port: int = field(default_factory=free_port)
    web: int = field(default_factory=free_port)
    workers: list[Daemon] = field(default_factory=list)

    @property
    def url(self) -> str:
        """For --master."""
        return f"spark://127.0.0.1:{self.port}"

    def start_master(self) -> Daemon:
        where = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.web))
        master = self._start("master", _MASTER, *where)
        wait_until(self._answers, "the master answers", master)
        return master

    def add_worker(self, machine: str = "") -> Daemon:
        """One more worker with one core; it is there when this returns. machine: the name of the one that it believes
        to be on, which root alone can make it (`can_rename_machines`)."""
        name, there = f"worker{len(self.workers)}", len(self.alive_workers())
        where = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self.folder / name / "work"))
        words = (_WORKER, *where, "--cores", "1", "--memory", "1g", self.url)
        worker = self._start(name, *words, within=_on(machine) if machine else ())
        self.workers.append(worker)
        wait_until(lambda: len(self.alive_workers()) > there, "the worker has registered", worker)
        return worker

    def _start(self, name: str, *words: str, within: Sequence[str] = ()) -> Daemon:
        """Without anything of ours on its path: executors inherit what a worker has."""
        home = self.folder / name
        home.mkdir(parents=True)
        environment = {one: text for one, text in os.environ.items() if not one.startswith(("PYTHON", "PYSPARK"))}
        environment |= {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.decommission.enabled=true",
        }
        log = home / "log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                [*within, str(SPARK_HOME / "bin" / "spark-class"), *words],
                env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                preexec_fn=end_with_the_tests,  # noqa: PLW1509 - no thread of the tests is running
            )  # fmt: skip
        return Daemon(process, log)

    def state(self) -> dict[str, Any]:
        """What the master's page says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web}/json/", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _answers(self) -> bool:
        try:
            return bool(self.state()["status"] == "ALIVE")
        except OSError:
            return False

    def alive_workers(self) -> list[dict[str, Any]]:
        return [worker for worker in self.state()["workers"] if worker["state"] == "ALIVE"]

    def executors(self) -> list[Executor]:
        """Those that run now, found by their command lines."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_text().split("\0")
                if "--executor-id" not in words:
                    continue
                work = (folder / "cwd").readlink()
                for place in range(len(self.workers)):
                    if work.is_relative_to(self.folder / f"worker{place}"):
                        number = words[words.index("--executor-id") + 1]
                        found.append(Executor(number, int(folder.name), place))
        return sorted(found, key=lambda one: int(one.number))

    def output(self) -> str:
        """The ends of all logs, executors' too."""
        logs = [*self.folder.glob("*/log"), *self.folder.rglob("stderr")]
        ends = {log.relative_to(self.folder): log.read_text(errors="replace")[-2000:] for log in logs}
        return "\n".join(f"--- {log}\n{end}" for log, end in ends.items())


def end_with_the_tests() -> None:
    """In a new process: it is killed when the tests are, who could not end it then. A master that is left starts the
    drivers that it supervises again and again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def can_rename_machines() -> bool:
    """Whether a process of this user can have a host name of its own."""
    try:
        return subprocess.run([*_on("elsewhere"), "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _on(machine: str) -> tuple[str, ...]:
    return ("unshare", "--uts", "sh", "-c", f'hostname {machine} && exec "$@"', "sh")


@contextlib.contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and so many workers; all of it is gone at the end."""
    cluster = Cluster(folder)
    daemons = [cluster.start_master()]
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        for daemon in (*cluster.workers, *daemons):
            daemon.end()
        for executor in cluster.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(executor.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], object], what: str, alive: Daemon | None = None) -> None:
    """Wait until the condition is true. alive: the process that the condition needs."""
    until(
        condition,
        f"waited in vain until {what}",
        PATIENCE,
        alive=None if alive is None else lambda: alive.process.poll() is None,
        log=None if alive is None else lambda: alive.log.read_text(errors="replace"),
        interval=0.05,
    )
