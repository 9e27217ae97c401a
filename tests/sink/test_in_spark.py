"""The sink inside Spark: tasks, workers, executors and drivers die, twins race; every row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from spark_streams.sink.send.write import append
from tests.sink.spark_job import KILLED, ROWS
from tests.sink.writing import frame, ledger_keys, numbers, options
from tools.servers.server import Server

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
IN = 3000  # entries of the stream that queries read
_PATIENCE = 240.0  # seconds for a Spark job


@pytest.fixture(scope="module")
def both_servers(engine_server: Server, redis_server: Server) -> list[Server]:
    """The bundled engine and a real redis-server, emptied."""
    servers = [engine_server, redis_server]
    for server in servers:
        with server.client() as client:
            client.flushall()
    return servers


def job(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A Spark job in a process group of its own; what it says goes to a file."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.sink.spark_job", *words],
            cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def finished(process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        code = process.wait(_PATIENCE)
    finally:
        kill(process)
    assert code == 0, (folder / "log").read_text()[-3000:]


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the driver, its JVM and all Python workers at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@pytest.fixture(scope="module")
def after_tasks(both_servers: list[Server], tmp_path_factory: pytest.TempPathFactory) -> list[Server]:
    """One cluster of two executors for all of these faults."""
    folder = tmp_path_factory.mktemp("tasks")
    finished(job(folder, "tasks", str(folder), *[server.url for server in both_servers]), folder)
    assert len(list(folder.glob("*/*"))) == 10, "not every fault has happened, or a slow task had no twin"
    return both_servers


@pytest.mark.parametrize("kind", ["engine", "redis"])
@pytest.mark.parametrize("fault", ["raise", "exit", "slow", "executor"])
def test_what_a_second_attempt_writes_is_not_written_twice(after_tasks: list[Server], kind: str, fault: str) -> None:
    """A failed task, a killed Python worker or executor, a speculative twin: behind a shuffle, every row once."""
    server = next(server for server in after_tasks if server.kind == kind)
    assert numbers(server, fault) == Counter(range(ROWS))


@pytest.fixture(scope="module")
def after_kill(both_servers: list[Server], tmp_path_factory: pytest.TempPathFactory) -> list[Counter[int]]:
    """One Spark whose queries all stand still at their faults is killed, another one drains; what was there between."""
    folder = tmp_path_factory.mktemp("killed")
    for server in both_servers:
        append([frame(list(range(IN)))], options(server.url, stream="in"), None)
    urls = [server.url for server in both_servers]
    first = job(folder, "query", str(folder), "2", *urls)
    try:
        deadline = time.monotonic() + _PATIENCE
        while len(list(folder.glob("*/*/hold-*"))) < len(KILLED) * len(urls):
            assert first.poll() is None, (folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        kill(first)
    between = [numbers(server, fault) for server in both_servers for fault in KILLED]
    finished(job(folder, "query", str(folder), "3", *urls), folder)
    return between


@pytest.mark.parametrize("kind", ["engine", "redis"])
@pytest.mark.parametrize("fault", KILLED)
def test_a_killed_driver_leaves_nothing_twice(
    after_kill: list[Counter[int]], both_servers: list[Server], kind: str, fault: str
) -> None:
    """SIGKILL when some chunks are written, and when all are but Spark's commit log knows nothing; the next run has
    another number of partitions behind its shuffle."""
    assert all(0 < len(some) < IN for some in after_kill)
    server = next(server for server in both_servers if server.kind == kind)
    assert numbers(server, fault) == Counter(range(IN))
    assert not [key for key in ledger_keys(server) if ":claims" in key or ":written" in key]
