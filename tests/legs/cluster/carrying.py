"""One run of carry.py on a cluster: how it is submitted, and whether what it has carried is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.legs.cluster.standalone import EXECUTOR_MEMORY, PATIENCE, SPARK_HOME, Cluster, end_with_the_tests, wait_until
from tools.machine_time import wait_for_end
from tools.servers.server import Server

ROOT = Path(__file__).resolve().parents[3]
SUBMIT = str(Path(sys.executable).parent / "spark-submit")
_PIECE = 5_000
# Small and quick to start. The errors of tasks come back with the query's.
QUICK = (
    "--conf", f"spark.executor.memory={EXECUTOR_MEMORY}", "--conf", "spark.executor.cores=1",
    "--conf", "spark.driver.memory=512m", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR",
    "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.showConsoleProgress=false",
    "--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)  # fmt: skip


def submit_environment(python: str | None, **more: str) -> dict[str, str]:
    """The driver's: its own Python is this one; python: that of tasks."""
    environment = {one: text for one, text in os.environ.items() if not one.startswith(("PYSPARK", "RSTREAM"))}
    environment |= {
        "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }  # fmt: skip
    return environment | ({} if python is None else {"PYSPARK_PYTHON": python}) | more


def feed(server: Server, count: int, first: int = 0, unreadable: int = 0) -> None:
    """Entries into stream `s`: p is a number of its own for each; n is no number in every `unreadable`th."""
    with server.client() as client:
        for begin in range(first, first + count, _PIECE):
            piece = client.pipeline(transaction=False)
            for number in range(begin, min(begin + _PIECE, first + count)):
                n = "many" if unreadable and number % unreadable == 0 else str(number)
                piece.xadd("s", {"p": str(number), "n": n})
            piece.execute()


def carried(server: Server) -> list[int]:
    """What stream `out` holds, by p, sorted."""
    with server.client() as client:
        return sorted(int(fields[b"p"]) for _, fields in client.xrange("out"))


def pending(server: Server) -> int:
    with server.client() as client:
        return int(client.xpending("s", "g")["pending"])


@dataclass
class Carrying:
    """The driver's process. folder: a new one for its files; options: of the source; environment: more
    variables of the driver; path: an argument before the program's own."""

    cluster: Cluster
    folder: Path
    servers: Sequence[Server]
    python: Path | str | None
    submit: Sequence[str] = ()
    batch: int = 5_000
    trigger: dict[str, Any] = field(default_factory=lambda: {"availableNow": True})
    options: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "done").unlink(missing_ok=True)
        asked = {
            "urls": [server.url for server in self.servers], "folder": str(self.folder), "batch": self.batch,
            "trigger": self.trigger, "options": self.options,
        }  # fmt: skip
        (self.folder / "asked").write_text(json.dumps(asked))
        words = [SUBMIT, "--master", self.cluster.url, *QUICK, *self.submit]
        self.log = self.folder / f"said{time.monotonic_ns()}"
        with self.log.open("wb") as said:
            self.process = subprocess.Popen(
                [*words, str(ROOT / "tests" / "legs" / "cluster" / "carry.py"), *self.path, str(self.folder / "asked")],
                cwd=self.folder, stdout=said, stderr=said, start_new_session=True,
                preexec_fn=end_with_the_tests,  # noqa: PLW1509 - no thread of the tests is running
                env=submit_environment(None if self.python is None else str(self.python), **self.environment),
            )  # fmt: skip

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def in_the_middle(self, server: Server, batches: int = 2, alive: bool = True) -> None:
        """Wait until a batch behind so many is written in part. alive: its process must live meanwhile."""
        with server.client() as client:

            def is_there() -> bool:
                assert not alive or self.process.poll() is None, self.output()
                written = int(client.xlen("out"))
                return written > batches * self.batch and written % self.batch != 0

            wait_until(is_there, "a batch is written in part")

    def ended(self) -> int:
        """Its exit code."""
        try:
            return wait_for_end(self.process, PATIENCE)
        finally:
            if self.process.poll() is None:
                self.process.kill()

    def finish(self) -> list[tuple[str, str]]:
        """It ends well: what its tasks ran with, which is the Python and the package's folder."""
        assert self.ended() == 0, f"{self.output()}\n{self.cluster.output()}"
        return [(python, package) for python, package in json.loads((self.folder / "done").read_text())]
