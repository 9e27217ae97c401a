"""The first program of README.md, and what it prints."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import redis

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.in_turn
def test_the_first_program_prints_what_readme_says(tmp_path: Path) -> None:
    shell, program, output = re.findall(r"```(?:python|text)?\n(.*?)```", README, re.DOTALL)[:3]
    command = next(line for line in shell.splitlines() if line.startswith("rstream "))
    assert len([line for line in (command + "\n" + program).splitlines() if line]) == 6
    runtime = tempfile.mkdtemp(prefix="r")  # an engine of its own; a socket's path must be short
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": runtime}
    environment.pop("RSTREAM_URL", None)
    _run([sys.executable, "-m", "spark_streams.cli", *shlex.split(command)[1:]], tmp_path, environment)
    first, again = (_run([sys.executable, "-c", program], tmp_path, environment) for _ in range(2))
    assert output in first
    assert not HAS_READ_LIMITS or "ada" not in again  # before Spark 4.2 the next run of the same query acknowledges
    with redis.Redis.from_url(f"unix://{runtime}/rstream-{os.getuid()}/engine.sock") as client:
        client.shutdown(nosave=True)
    shutil.rmtree(runtime)


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
