"""Each defect of a server, source or sink is found within three minutes, and a right server passes each time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import redis

from tests.lagging import one_server
from tests.operations.verify.defective import DEFECTS, Defective
from tools.machine_time import machine_seconds
from tools.servers.server import KINDS, Server, redis_server_path, skip_without_redis

pytestmark = [pytest.mark.spark, pytest.mark.kills]

WITHIN = 180  # machine seconds
RUNS = 20


def verify(url: str, *options: str, minutes: float = 0.4) -> tuple[int, dict[str, Any], str]:
    """Return exit code, report and progress of a run."""
    command = [
        sys.executable,
        "-m",
        "spark_streams.cli",
        "verify",
        "--url",
        url,
        "--minutes",
        str(minutes),
        "--json",
    ]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout), ended.stderr


def server_of(request: pytest.FixtureRequest, number: int) -> Server:
    """Return one of the servers in turn."""
    kinds = KINDS if redis_server_path() else KINDS[:1]
    server: Server = request.getfixturevalue(f"{kinds[number % len(kinds)]}_server")
    return server


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(request: pytest.FixtureRequest, defect: str) -> None:
    began = machine_seconds()
    with Defective(server_of(request, list(DEFECTS).index(defect)).url, defect) as relay:
        code, report, progress = verify(relay.url)
        assert relay.done
    assert (code, report["verdict"]) == (1, "broken"), progress
    assert report["counts"][DEFECTS[defect][2]] > 0, report
    assert report["faults"]
    assert machine_seconds() - began < WITHIN


def test_a_stale_replica_is_found() -> None:
    """It becomes the master without the last writes."""
    skip_without_redis()
    began = machine_seconds()
    with one_server() as lagging:

        def fail_over() -> None:
            with redis.Redis.from_url(lagging.server.url) as client:
                while not any(client.xlen(key) for key in client.scan_iter("rstream-verify-*:out")):
                    time.sleep(0.1)
            lagging.cut_off()
            time.sleep(2)
            lagging.promote()

        failing = threading.Thread(target=fail_over)
        failing.start()
        code, report, progress = verify(lagging.server.url)
        failing.join()
    assert (code, report["verdict"]) == (1, "broken"), progress
    assert report["counts"]["lost"] > 0, report
    assert "that the server had confirmed are not in their stream any more" in report["sentence"]
    assert machine_seconds() - began < WITHIN


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_right_server_passes(request: pytest.FixtureRequest, seed: int) -> None:
    code, report, progress = verify(server_of(request, seed).url, "--seed", str(seed), minutes=0.1)
    assert (code, report["verdict"]) == (0, "held"), (report, progress)
