"""The jobs as a data engineer runs them: spark-submit, a config file, a kill in the middle, a restart."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset
import pytest

from tests.servers import Server, free_port

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "data" / "flights_sample.csv"


class Work:
    """A folder with its own output, and the settings that point the jobs' sample configurations at it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server

    def command(self, job: str, *settings: str, submit: bool = True) -> list[str]:
        places = {
            "load": [f"input.path={SAMPLE}"],
            "etl": [f"parquet.path={self.folder}/flights", f"job.checkpoint={self.folder}/etl"],
            "aggregate": [f"job.checkpoint={self.folder}/aggregate"],
        }
        defaults = ROOT / "conf" / "spark-defaults.conf"
        starter = [str(Path(sys.executable).parent / "spark-submit"), "--properties-file", str(defaults)]
        command = [*(starter if submit else [sys.executable]), f"jobs/{job}.py", "--config", f"conf/{job}.toml"]
        for setting in (*places[job], *settings):
            command += ["--set", setting]
        return [*command, "--summary", f"{self.folder}/{job}.json"]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "RSTREAM_URL": self.server.url, "PYSPARK_PYTHON": sys.executable}

    def start(self, job: str, *settings: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(job, *settings),
            cwd=ROOT,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, job: str, *settings: str) -> dict[str, object]:
        """Run a job to its end; its summary."""
        with self.start(job, *settings) as process:
            said, _ = process.communicate(timeout=180)
        assert process.returncode == 0, said
        summary: dict[str, object] = json.loads((self.folder / f"{job}.json").read_text())
        return summary


@pytest.fixture
def work(tmp_path: Path, server: Server) -> Work:
    return Work(tmp_path, server)


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def sample() -> list[dict[str, str]]:
    with SAMPLE.open(newline="") as lines:
        return list(csv.DictReader(lines))


KEY = ("month", "day", "sched_dep_time", "carrier", "flight", "origin")


def parquet_keys(folder: Path) -> list[tuple[str, ...]]:
    rows = pyarrow.dataset.dataset(folder / "flights", partitioning="hive").to_table(columns=list(KEY)).to_pylist()
    return sorted(tuple(str(row[name]) for name in KEY) for row in rows)


@pytest.mark.spark
def test_load_etl_killed_and_restarted_then_aggregate(work: Work) -> None:
    """SIGKILL in the middle of the ETL job: Parquet holds each flight once, and nothing stays pending."""
    flights = sample()
    departed = [row for row in flights if row["dep_time"] != "NA"]
    assert work.run("load")["entries"] == len(flights)

    # Small batches, and a kill somewhere between the third commit and two seconds later.
    small = ("source.maxEntriesPerTrigger=60", "source.entriesPerPartition=30")
    process = work.start("etl", *small)
    wait_for(lambda: (work.folder / "etl" / "commits" / "2").exists() or process.poll() is not None)
    seed = random.randrange(1000)
    print(f"seed {seed}")
    time.sleep(random.Random(seed).random() * 2)
    assert process.poll() is None, process.communicate()[0]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    with work.server.client() as client:
        before = client.xinfo_groups("flights")[0]
        assert before["lag"] > 0
    work.run("etl", *small)

    assert parquet_keys(work.folder) == sorted(tuple(row[name] for name in KEY) for row in departed)
    with work.server.client(decode_responses=True) as client:
        group = client.xinfo_groups("flights")[0]
        assert (group["pending"], group["lag"]) == (0, 0)
        letters = [fields for _, fields in client.xrange("flights:dead")]
        cancelled = [row for row in flights if row["dep_time"] == "NA"]
        # At least once: a batch that was cut off may have written its letters before.
        assert {tuple(letter[name] for name in KEY) for letter in letters} == {
            tuple(row[name] for name in KEY) for row in cancelled
        }
        assert {letter["dl.reason"] for letter in letters} == {"no departure time"}
        assert all(client.xrange("flights", letter["dl.id"], letter["dl.id"]) for letter in letters)

    summary = work.run("aggregate")
    with work.server.client(decode_responses=True) as client:
        delays = [fields for _, fields in client.xrange("delays")]
        assert client.xpending("flights", "aggregate")["pending"] == 0
    assert summary["groups"] == len(delays) == len({(row["carrier"], row["month"]) for row in departed})
    united = [row for row in delays if row["carrier"] == "UA"]
    minutes = [int(row["dep_delay"]) for row in departed if row["carrier"] == "UA"]
    assert sum(int(row["flights"]) for row in united) == len(minutes)
    total = sum(float(row["mean_dep_delay"]) * int(row["flights"]) for row in united)
    assert total == pytest.approx(sum(minutes))


@pytest.mark.parametrize(
    ("job", "settings", "code", "message"),
    [
        (
            "etl",
            ["source.gruop=x"],
            2,
            "etl: [RSTREAM_UNKNOWN_OPTION] the rstream source has no option 'gruop'; did",
        ),
        ("etl", ["parquet.pth=x"], 2, "etl: [RSTREAM_CONFIG] conf/etl.toml: unknown key parquet.pth; did you mean"),
        ("etl", ["job.trigger=often"], 2, "etl: [RSTREAM_CONFIG] job.trigger must be"),
        ("etl", ["source.mode=FAILFAST"], 2, "etl: [RSTREAM_CONFIG] source.mode has no meaning here"),
        ("etl", ["columns.batch=INT"], 2, "etl: [RSTREAM_CONFIG] [columns] names 'batch': _…, dl.… and batch are"),
        ("etl", ["rule=[1]"], 2, "etl: [RSTREAM_CONFIG] [[rule]] needs exactly reason and when"),
        ("etl", ["source.streams=text"], 1, "etl: [RSTREAM_WRONG_KEY_TYPE] key 'text' at"),
        (
            "etl",
            [f"url=redis://:secret@127.0.0.1:{free_port()}"],
            1,
            "etl: [RSTREAM_SERVER_UNREACHABLE] no stream",
        ),
        ("load", ["input.path=nowhere.csv"], 2, "load: [RSTREAM_CONFIG] input.path 'nowhere.csv' does not exist"),
        ("load", ["sink.stream=text"], 1, "load: [RSTREAM_WRONG_KEY_TYPE] key 'text' at"),
        ("aggregate", ["sink.delivery=exactly-twice"], 2, "aggregate: [RSTREAM_INVALID_OPTION] sink option delivery="),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, engine_server: Server, job: str, settings: list[str], code: int, message: str
) -> None:
    """Found before Spark is started, so no spark-submit is needed to see it."""
    work = Work(tmp_path, engine_server)
    with work.server.client() as client:
        client.flushall()
        client.set("text", "no stream")
    command = work.command(job, *settings, submit=False)
    ended = subprocess.run(command, cwd=ROOT, env=work.environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.startswith(message)
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stderr + ended.stdout


def test_a_missing_jdk_and_a_missing_config_are_one_line(tmp_path: Path, engine_server: Server) -> None:
    work = Work(tmp_path, engine_server)
    bare = {**work.environment(), "PATH": str(work.folder)}
    bare.pop("JAVA_HOME", None)
    command = work.command("etl", submit=False)
    ended = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        "etl: [RSTREAM_JOB] no Java found: install a JDK 17 or newer, or set JAVA_HOME\n",
    )
    command[command.index("conf/etl.toml")] = "conf/none.toml"
    ended = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("etl: [RSTREAM_CONFIG] there is no config file 'conf/none.toml'")
