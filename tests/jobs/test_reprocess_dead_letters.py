"""jobs/reprocess_dead_letters.py as a data engineer runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadletter.making import fill, numbers
from tests.servers import Server

ROOT = Path(__file__).resolve().parents[2]
DEAD = "flights:dead"


def run(server: Server, folder: Path, *settings: str, submit: bool = False) -> subprocess.CompletedProcess[str]:
    """The job with its sample configuration, by spark-submit or, which is quicker, by Python."""
    properties = ["--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
    starter = [str(Path(sys.executable).parent / "spark-submit"), *properties] if submit else [sys.executable]
    command = [*starter, "jobs/reprocess_dead_letters.py", "--config", "conf/reprocess_dead_letters.toml"]
    for setting in settings:
        command += ["--set", setting]
    environment = {**os.environ, "RSTREAM_URL": server.url, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{ROOT}"}
    command += ["--summary", str(folder / "summary.json")]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def summary(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return found


def test_a_dry_run_counts_and_a_run_moves_what_is_meant(server: Server, tmp_path: Path) -> None:
    fill(server, 90, into=DEAD)
    chosen = ('letters.reasons=["dec*"]', "redrive.limit=20")
    looked = run(server, tmp_path, *chosen, "redrive.dry_run=true")
    assert looked.returncode == 0, looked.stderr
    assert "would move 20 × decode → s" in looked.stdout
    assert (summary(tmp_path)["dry_run"], summary(tmp_path)["moved"], numbers(server)) == (True, 20, [])
    done = run(server, tmp_path, *chosen)
    assert done.returncode == 0, done.stderr
    assert (summary(tmp_path)["moved"], numbers(server)) == (20, list(range(0, 60, 3)))
    only = run(server, tmp_path, "letters.fields.n=61", 'letters.of_streams=["s"]', "redrive.to=retry")
    assert (only.returncode, numbers(server, "retry")) == (0, [61])


def test_letters_that_name_no_stream_to_go_to_are_told(engine_server: Server, tmp_path: Path) -> None:
    with engine_server.client() as client:
        client.flushall()
    fill(engine_server, 3, into=DEAD, stream="")
    done = run(engine_server, tmp_path)
    assert (done.returncode, summary(tmp_path)["homeless"], summary(tmp_path)["moved"]) == (0, 3, 0), done.stderr
    assert "left 1 × decode →" in done.stdout
    assert f"3 letters name no stream to go to, or {DEAD}: set redrive.to" in done.stdout


@pytest.mark.spark
def test_it_is_submitted_as_the_other_jobs_are(engine_server: Server, tmp_path: Path) -> None:
    with engine_server.client() as client:
        client.flushall()
    fill(engine_server, 60, into=DEAD)
    done = run(engine_server, tmp_path, "redrive.rate=100000", submit=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (summary(tmp_path)["moved"], numbers(engine_server)) == (60, list(range(60)))


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        (["redrive.max_redrive=1"], 2, "[RSTREAM_CONFIG] conf/reprocess_dead_letters.toml: unknown key redrive.max_re"),
        (["redrive.rate=0"], 2, "[RSTREAM_CONFIG] redrive.rate must be at least 1"),
        (["letters.reasons=[1]"], 2, "[RSTREAM_CONFIG] letters.reasons must be a list of strings, not [1]"),
        (["letters.older=soon"], 2, "[RSTREAM_INVALID_OPTION] older='soon': "),
        (["redrive.to=flights:dead"], 2, "[RSTREAM_INVALID_OPTION] dead letters of 'flights:dead' would be sent to"),
        (["redrive.transform=nowhere:x"], 1, "[RSTREAM_TRANSFORM] transform 'nowhere:x': nowhere cannot be imported"),
        ([], 1, "[RSTREAM_SERVER_REPLY] there is no stream 'flights:dead' at "),
    ],
)
def test_what_is_wrong_is_one_line(
    engine_server: Server, tmp_path: Path, settings: list[str], code: int, message: str
) -> None:
    with engine_server.client() as client:
        client.flushall()
    ended = run(engine_server, tmp_path, *settings)
    assert (ended.returncode, ended.stderr.count("\n")) == (code, 1), ended.stderr
    assert ended.stderr.startswith(f"reprocess_dead_letters: {message}")
