"""Queries and jobs on a cluster whose machines have the least: how the package comes to the executors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

from tests.jobs.work import CONF, sample
from tests.legs.cluster.carrying import QUICK, ROOT, SUBMIT, Carrying, carried, feed, pending, submit_environment
from tests.legs.cluster.conftest import Pythons
from tests.legs.cluster.pythons import pack
from tests.legs.cluster.standalone import PATIENCE, Cluster, wait_until
from tools.machine_time import wait_for_end
from tools.servers.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.spark]
MANY = 60_000
UNREADABLE = 1_000  # every such one
LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "s:dead"}


def test_by_py_files_each_entry_is_carried_once_and_dead_letters_return(
    cluster: Cluster, pythons: Pythons, both_servers: list[Server], tmp_path: Path
) -> None:
    """Executors have pyarrow, numpy, redis and hiredis. On both servers in one application."""
    for server in both_servers:
        feed(server, MANY, unreadable=UNREADABLE)
    by_zip = ("--py-files", str(pythons.zipped))
    run = Carrying(cluster, tmp_path, both_servers, pythons.bare, by_zip, batch=20_000, options=LETTERS)
    tasks = run.finish()
    assert {python for python, _ in tasks} == {str(pythons.bare.parent.parent)}
    assert all(package.endswith("spark_streams.zip/spark_streams") for _, package in tasks)
    for server in both_servers:
        assert carried(server) == [number for number in range(MANY) if number % UNREADABLE]
        redrive_dead_letters(server, tmp_path)
    Carrying(cluster, tmp_path, both_servers, pythons.bare, by_zip, batch=20_000, options=LETTERS).finish()
    for server in both_servers:
        assert carried(server) == list(range(MANY))
        assert pending(server) == 0


def redrive_dead_letters(server: Server, folder: Path) -> None:
    words = [sys.executable, str(ROOT / "jobs" / "reprocess_dead_letters.py"), "--summary", str(folder / "sent.json")]
    for setting in (
        f"url={server.url}",
        "letters.stream=s:dead",
        "redrive.transform=tests.legs.cluster.repairs:mended",
    ):
        words += ["--set", setting]
    ended = subprocess.run(
        words, env=submit_environment(None), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((folder / "sent.json").read_text())["moved"] == MANY // UNREADABLE


@pytest.mark.parametrize("loses", [False, True], ids=["", "a worker is killed"])
def test_a_job_by_spark_submit(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path, loses: bool) -> None:
    """jobs/etl.py: a stream to Parquet and dead letters, counted; also where one of two workers is killed between."""
    rows = sample()
    with real.client() as client:
        entries = client.pipeline(transaction=False)
        for row in rows:
            entries.xadd("flights", {name: text for name, text in row.items() if text != "NA"})
        entries.execute()
    words = [SUBMIT, "--master", cluster.url, *QUICK, "--py-files", str(pythons.zipped), str(ROOT / "jobs" / "etl.py")]
    words += [
        "--config",
        str(CONF / "etl.toml"),
        "--summary",
        str(tmp_path / "etl.json"),
    ]
    for setting in (f"table.path={tmp_path}/flights", f"job.checkpoint={tmp_path}/checkpoint"):
        words += ["--set", setting]
    words += ["--set", "source.maxEntriesPerTrigger=150", "--set", "source.entriesPerPartition=75"] if loses else []
    environment = submit_environment(str(pythons.bare), RSTREAM_URL=real.url)
    with (tmp_path / "said").open("wb") as said:
        job = subprocess.Popen(words, env=environment, stdout=said, stderr=said)
    if loses:
        wait_until(lambda: job.poll() is not None or (tmp_path / "checkpoint" / "commits" / "1").exists(), "a batch")
        assert job.poll() is None, (tmp_path / "said").read_text()
        cluster.workers[cluster.executors()[0].worker].end()
    code = wait_for_end(job, PATIENCE)
    assert code == 0, f"{(tmp_path / 'said').read_text()}\n{cluster.output()}"
    departed = sum(row["dep_time"] != "NA" for row in rows)
    told = json.loads((tmp_path / "etl.json").read_text())
    assert (told["parquet"], told["dead"]) == (departed, len(rows) - departed)
    assert pyarrow.dataset.dataset(tmp_path / "flights", partitioning="hive").count_rows() == departed
    with real.client() as client:
        assert client.xlen("flights:dead") == len(rows) - departed
        assert client.xpending("flights", "etl")["pending"] == 0


def test_a_packed_environment(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    """venv-pack: the archive comes with the query, and is all that executors have; but for the Python that the venv was
    made of, which must be on every machine, at the same place. The driver needs one under the same name (S70)."""
    feed(real, MANY)
    archive = pack(pythons.whole, tmp_path / "env.tar.gz")
    submit = ("--archives", f"{archive}#env")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "env").symlink_to(pythons.whole.parent.parent)
    alone = {"PYTHONPATH": "", "PYSPARK_DRIVER_PYTHON": "./env/bin/python"}
    run = Carrying(cluster, tmp_path / "run", [real], "./env/bin/python", submit, batch=20_000, environment=alone)
    tasks = run.finish()
    assert all(Path(package).is_relative_to(Path(python)) for python, package in tasks)
    assert all(Path(python).is_relative_to(cluster.folder) for python, _ in tasks)
    assert carried(real) == list(range(MANY))
    assert pending(real) == 0
