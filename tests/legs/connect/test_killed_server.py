"""Spark Connect's server is killed in the middle of a batch: nothing is lost, and nothing is written twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.legs.connect.connect_server import PATIENCE, ROOT, ConnectServer
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.spark

STOPPING = "own_program.py: stopping after the batch in flight (at most 30s); press Ctrl-C again to stop at once"


def started(connect: ConnectServer, folder: Path, urls: list[str], request: pytest.FixtureRequest) -> Any:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, str(Path(__file__).parent / "own_program.py"), connect.url, str(folder), *urls]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    request.addfinalizer(process.kill)
    return process


def wait_for_batch(begun: Path, process: Any) -> None:
    def log() -> str:
        return str(process.stderr.read()) if process.poll() is not None else ""  # of a living process, it has no end

    until(begun.exists, "the batch has not begun", PATIENCE, alive=lambda: process.poll() is None, log=log)


def numbers(server: Server, stream: str) -> Counter[int]:
    with server.client() as client:
        return Counter(int(fields[b"n"]) for _, fields in client.xrange(stream))


@pytest.mark.long
def test_named_writes_are_written_once(
    connect: ConnectServer, engine_server: Server, redis_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The batch is replayed by another run, another client, another server. One write has the name that
    `spark_streams.transaction` gives it, one has none. In the end the client is told to stop: its batch finishes."""
    both = [engine_server, redis_server]
    for server in both:
        with server.client() as client:
            client.flushall()
            for n in range(20):
                client.xadd("in", {"n": n})
    urls = [redis_server.url, *[server.url for server in both]]

    first = started(connect, tmp_path, urls, request)
    wait_for_batch(tmp_path / "begun0", first)
    (tmp_path / "begun0").unlink()
    connect.kill()
    _, said = first.communicate(timeout=PATIENCE)
    *_, last = said.splitlines()  # PySpark itself warns of its retries
    assert (first.returncode, "Traceback" in said) == (1, False), said
    assert last.startswith("own_program.py: [RSTREAM_QUERY] Spark Connect: failed to connect ")
    assert [numbers(server, "once") for server in both] == [Counter(range(20))] * 2

    connect.start()
    second = started(connect, tmp_path, urls, request)
    wait_for_batch(tmp_path / "begun0", second)
    (tmp_path / "go0").touch()
    with redis_server.client() as client:
        client.xadd("in", {"n": 20})
    wait_for_batch(tmp_path / "begun1", second)
    second.terminate()
    assert (second.stderr.readline(), second.stderr.readline()) == ("ready\n", f"{STOPPING}\n")
    (tmp_path / "go1").touch()
    _, said = second.communicate(timeout=PATIENCE)
    assert (second.returncode, said) == (0, "behind run\n")
    assert [numbers(server, "once") for server in both] == [Counter(range(21))] * 2
    assert numbers(engine_server, "again") == Counter(range(21)) + Counter(range(20))
    with redis_server.client() as client:
        assert client.xpending("in", "g")["pending"] == 0
    assert "does not belong to the query that calls this function with batch 1" in (tmp_path / "other").read_text()
