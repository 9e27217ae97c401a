"""The driver of deploy/query.yaml, started by the image's entrypoint: SIGTERM finishes the batch, with exit code 0."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.jobs.work import PATIENCE, ROOT, SUBMIT
from tools.servers.server import Server, free_port
from tools.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_sigterm_to_the_container_stops_the_query(engine_server: Server, tmp_path: Path) -> None:
    config_map, application = yaml.safe_load_all((ROOT / "deploy" / "query.yaml").read_text(encoding="utf-8"))
    text = config_map["data"]["aggregate.toml"].replace("/data/", f"{tmp_path}/")
    text = re.sub(r"(?m)^(username|passwordFile) = .*\n", "", text)
    text = re.sub(r'(?m)^url = ".*"', f'url = "{engine_server.url}"', text)
    port = free_port()
    text = text.replace("metrics_port = 9404", f"metrics_port = {port}")
    (tmp_path / "aggregate.toml").write_text(text, encoding="utf-8")
    with engine_server.client() as client:
        client.flushall()
        client.xadd("orders", {"customer": "ann", "amount": "12.50"})
        client.xadd("orders", {"customer": "ann", "amount": "7.00"})
    program = application["spec"]["mainApplicationFile"].replace("/app/", f"{ROOT}/")
    words = [
        *("driver", *SUBMIT, "--class", "org.apache.spark.deploy.PythonRunner", "--master", "local[2]"),
        *(program, f"--config={tmp_path}/aggregate.toml"),
    ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    environment |= {"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1", "SPARK_LOCAL_IP": "127.0.0.1"}
    said = tmp_path / "said"
    with (
        said.open("wb") as output,
        subprocess.Popen(
            [ROOT / "deploy" / "entrypoint", *words], cwd=ROOT, env=environment, stdout=output, stderr=output
        ) as process,
        engine_server.client() as client,
    ):
        try:
            until(
                lambda: client.xlen("totals"),
                "no total is written",
                PATIENCE,
                alive=lambda: process.poll() is None,
                log=said.read_text,
            )
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as reply:
                assert reply.status == 200
            process.terminate()
            began = time.monotonic()
            grace = application["spec"]["driver"]["terminationGracePeriodSeconds"]
            assert process.wait(grace) == 0, said.read_text()
            assert time.monotonic() - began < grace
            assert client.xrange("totals")[-1][1] == {b"customer": b"ann", b"total": b"19.50"}
            assert client.xpending("orders", "totals")["pending"] == 0
        finally:
            process.kill()
