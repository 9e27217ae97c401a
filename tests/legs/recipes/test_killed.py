"""Recipes whose process is killed: state, windows, hashes and a Delta table are what all entries, read once, give."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tests.legs.recipes.feed import READ, Feed
from tools.machine_time import machine_seconds, wait_for_end
from tools.servers.server import Server

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 240.0  # seconds

pytestmark = [
    pytest.mark.long,  # that batches which are run again give the same is test_state.py, test_tables.py, test_hashes.py
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_READ_LIMITS, reason="before Spark 4.2 the last windows wait for a later run"),
]


def started(server: Server, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.legs.recipes.killed_program", server.url, str(folder), *words]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True)


def commits(folder: Path, query: str) -> int:
    return sum(file.name.isdigit() for file in (folder / query / "commits").glob("*"))


def test_what_is_there_in_the_end_is_what_a_batch_gives(server: Server, tmp_path: Path) -> None:
    """Killed while each query has committed a batch, or some, and is in the midst of others; then run to the end."""
    with server.client(decode_responses=True) as client:
        feed = Feed(client)
        feed.round()
        process = started(server, tmp_path)
        try:
            deadline = machine_seconds() + PATIENCE
            while min(commits(tmp_path, query) for query in READ) < 1:
                assert process.poll() is None, (tmp_path / "said").read_text()[-3000:]
                assert machine_seconds() < deadline, (tmp_path / "said").read_text()[-3000:]
                feed.round()
                time.sleep(0.2 + random.random() / 2)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        before = {query: commits(tmp_path, query) for query in READ}
        feed.round()
        feed.close_the_windows()
        code = wait_for_end(started(server, tmp_path, "drain"), PATIENCE)
        assert code == 0, (tmp_path / "said").read_text()[-3000:]
        assert all(commits(tmp_path, query) > count for query, count in before.items())
        for query in READ:
            feed.check(query, tmp_path)
