"""A driver whose environment limits what options may name: users of SQL and of Python reach nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.servers.server import Server, free_port

pytestmark = pytest.mark.spark
PROGRAM = Path(__file__).with_name("limited_program.py")
LISTS = ("RSTREAM_ALLOW_HOSTS", "RSTREAM_ALLOW_FILES", "RSTREAM_ALLOW_PROVIDERS", "RSTREAM_ALLOW_EMBEDDED")


def test_sql_sources_sinks_and_queries_name_what_is_listed_and_nothing_else(server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        client.xadd("orders", {"n": 1})
    foreign = f"redis://127.0.0.1:{free_port()}/0"
    listed = server.url.removeprefix("redis://").removesuffix("/0")  # a socket is listed as it is written
    lists = dict.fromkeys(LISTS, "") | {"RSTREAM_ALLOW_HOSTS": listed}
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), server.url, foreign],
        check=False, env={**os.environ, **lists}, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    variables = {
        "host": "HOSTS",
        "host of a sink": "HOSTS",
        "host of a query": "HOSTS",
        "host of a table": "HOSTS",
        "host after SET": "HOSTS",
        "host of a query after SET": "HOSTS",
        "file": "FILES",
        "provider": "PROVIDERS",
        "engine": "EMBEDDED",
    }
    for name, variable in variables.items():
        assert said[name].startswith("[RSTREAM_NOT_ALLOWED] "), (name, said[name])
        assert f"refused: RSTREAM_ALLOW_{variable}," in said[name]
    assert {said[name] for name in ("listed", "listed sink", "listed query")} == {"done"}, said
    with server.client() as client:
        assert client.xlen("out") == 1
