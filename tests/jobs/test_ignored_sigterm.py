"""A job whose spark-submit was started with SIGTERM ignored: a JVM keeps that, so the job says how to stop it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.jobs.work import Work
from tools.servers.server import Server

pytestmark = pytest.mark.spark

IGNORING_SIGTERM = ("sh", "-c", 'trap \'\' TERM; exec "$0" "$@"')


def test_a_job_that_cannot_be_stopped_by_sigterm_says_so_and_stops_as_it_says(server: Server, tmp_path: Path) -> None:
    with Work(tmp_path, server) as work:
        run = work.start(work.arguments("load", "sink.rowsPerSecond=10"), by=IGNORING_SIGTERM)
        with server.client() as client:
            run.wait_until(lambda: client.xlen("flights") > 0, "the job has written nothing")
        said = re.search(r"SIGTERM does not stop this job.* run: kill -INT (\d+)\n", run.output_file.read_text())
        assert said is not None
        os.kill(int(said[1]), signal.SIGINT)
        run.finish()
        assert work.summary("load")["stopped"] is True


def test_a_job_that_stops_at_sigterm_says_nothing_of_it(engine_server: Server, tmp_path: Path) -> None:
    with Work(tmp_path, engine_server) as work:
        run = work.start([*work.arguments("load"), "--check"])
        run.finish()
        assert "SIGTERM" not in run.output_file.read_text()
