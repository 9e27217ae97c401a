"""The sink inside Spark: tasks, workers, executors and drivers die, twins race; every row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from spark_streams.connector.sink.chunk_writer import append
from tests.connector.sink.spark_job import KILLED, ROWS
from tests.connector.sink.writing import frame, ledger_keys, numbers, options
from tools.servers.server import KINDS, Server, skip_without_redis
from tools.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(5)]
ROOT = Path(__file__).resolve().parents[3]
IN = 3000  # entries of the stream that queries read
_PATIENCE = 240.0  # seconds for a Spark job


@pytest.fixture(scope="module")
def servers(servers_of_kinds: dict[str, Server]) -> dict[str, Server]:
    """Kind → emptied server; one Spark writes to all of them."""
    for server in servers_of_kinds.values():
        with server.client() as client:
            client.flushall()
    return servers_of_kinds


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        skip_without_redis()
    return str(request.param)


def job(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A Spark job in a process group of its own; what it says goes to a file."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.connector.sink.spark_job", *words],
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
def after_tasks(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Server]:
    """One cluster of two executors for all of these faults."""
    folder = tmp_path_factory.mktemp("tasks")
    finished(job(folder, "tasks", str(folder), *[server.url for server in servers.values()]), folder)
    happened = len(list(folder.glob("*/*")))
    assert happened == 5 * len(servers), "not every fault has happened, or a slow task had no twin"
    return servers


@pytest.mark.parametrize("fault", ["raise", "exit", "slow", "executor"])
def test_a_second_attempt_of_a_task_writes_no_row_twice(after_tasks: dict[str, Server], kind: str, fault: str) -> None:
    """A failed task, a killed Python worker or executor, a speculative twin: behind a shuffle, every row once."""
    assert numbers(after_tasks[kind], fault) == Counter(range(ROWS))


@pytest.fixture(scope="module")
def after_kill(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> list[Counter[int]]:
    """One Spark whose queries all stand still at their faults is killed, another one drains; what was there between."""
    folder = tmp_path_factory.mktemp("killed")
    for server in servers.values():
        append([frame(list(range(IN)))], options(server.url, stream="in"), None)
    urls = [server.url for server in servers.values()]
    first = job(folder, "query", str(folder), "2", *urls)
    try:
        until(
            lambda: len(list(folder.glob("*/*/hold-*"))) >= len(KILLED) * len(urls),
            "a query has not reached the place where it is killed",
            _PATIENCE,
            alive=lambda: first.poll() is None,
            log=(folder / "log").read_text,
        )
    finally:
        kill(first)
    between = [numbers(server, fault) for server in servers.values() for fault in KILLED]
    finished(job(folder, "query", str(folder), "3", *urls), folder)
    return between


@pytest.mark.parametrize("fault", KILLED)
def test_a_killed_driver_leaves_no_row_twice(
    after_kill: list[Counter[int]], servers: dict[str, Server], kind: str, fault: str
) -> None:
    """SIGKILL when some chunks are written, and when all are but Spark's commit log knows nothing; the next run has
    another number of partitions behind its shuffle."""
    assert all(0 < len(some) < IN for some in after_kill)
    server = servers[kind]
    assert numbers(server, fault) == Counter(range(IN))
    assert not [key for key in ledger_keys(server) if ":claims" in key or ":written" in key]
