"""State that a release has written is continued: by a query from its checkpoint, on the keys and dead letters of then.

tools/release_samples.py makes the samples. Those of this commit are made here, those of a release are in tests/data.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.engine import LocalEngine
from tools.release_samples import BAD, FOLDER, WAITING, WRITTEN, make, writer
from tools.release_state import ROOT

pytestmark = pytest.mark.spark

KEPT = sorted(path.name for path in FOLDER.glob("[0-9]*"))
GOOD = [number for number in range(WRITTEN + WAITING) if number != BAD]


@pytest.mark.parametrize("version", ["this commit", *KEPT])
def test_a_query_goes_on_where_a_release_has_ended(version: str, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    if version == "this commit":
        make(spark, folder)
    else:
        shutil.copytree(FOLDER / version, folder)
    with (
        LocalEngine(folder / "engine") as engine,
        redis.Redis.from_url(engine.url, decode_responses=True) as client,
    ):
        assert [int(row["n"]) for _, row in client.xrange("out")] == GOOD[: WRITTEN - 1]
        spark_streams.run(writer(spark, engine.url, folder / "checkpoint"))
        assert [int(row["n"]) for _, row in client.xrange("out")] == GOOD
        assert client.xpending("in", "g")["pending"] == 0
        [(letter, fields)] = client.xrange("dead")
        assert fields["n"] == "bad"
        command = [
            sys.executable,
            "-m",
            "spark_streams.cli",
            "dead",
            "redrive",
            "dead",
            "--set",
            "n=7",
            "--yes",
        ]
        ended = subprocess.run([*command, "--url", engine.url], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        spark_streams.run(writer(spark, engine.url, folder / "checkpoint"))
        assert sorted(int(row["n"]) for _, row in client.xrange("out")) == sorted([*GOOD, BAD])
        assert not client.xrange("dead", letter, letter)


def test_each_release_has_its_samples() -> None:
    dated = re.findall(r"(?m)^## \[(\S+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert sorted(dated) == KEPT, "on the day of a release: python -m tools.release_samples"
