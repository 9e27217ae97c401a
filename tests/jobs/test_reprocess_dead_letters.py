"""jobs/reprocess_dead_letters.py as a data engineer runs it. (test_submitted.py submits it.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_streams.connector.deadletter.envelope import dead_letter_fields
from tests.connector.deadletter.making import fill, numbers
from tests.jobs.work import CONF, ROOT, call
from tools.servers.server import Server

DEAD = "flights:dead"


def arguments(folder: Path, *settings: str) -> list[str]:
    """The job and its sample configuration."""
    words = [
        "reprocess_dead_letters",
        "--config",
        str(CONF / "reprocess_dead_letters.toml"),
    ]
    for setting in settings:
        words += ["--set", setting]
    return [*words, "--summary", str(folder / "summary.json")]


def run(server: Server, folder: Path) -> subprocess.CompletedProcess[str]:
    """The job by Python, in a process of its own."""
    job, *words = arguments(folder)
    environment = {**os.environ, "RSTREAM_URL": server.url, "PYTHONPATH": f"{ROOT}"}
    command = [sys.executable, f"jobs/{job}.py", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def summary(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return found


def test_a_dry_run_counts_and_a_run_moves_the_selected_dead_letters(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(server, 90, into=DEAD)
    monkeypatch.setenv("RSTREAM_URL", server.url)
    chosen = ('letters.reasons=["dec*"]', "redrive.limit=20")
    assert call(monkeypatch, *arguments(tmp_path, *chosen, "redrive.dry_run=true")) == 0
    assert "would move 20 × decode → s" in capsys.readouterr().out
    assert (summary(tmp_path)["dry_run"], summary(tmp_path)["moved"], numbers(server)) == (True, 20, [])
    assert call(monkeypatch, *arguments(tmp_path, *chosen)) == 0
    assert (summary(tmp_path)["moved"], numbers(server)) == (20, list(range(0, 60, 3)))
    only = ("letters.fields.n=61", 'letters.of_streams=["s"]', "redrive.to=retry")
    assert call(monkeypatch, *arguments(tmp_path, *only)) == 0
    assert numbers(server, "retry") == [61]


def test_a_field_that_selects_dead_letters_may_have_any_name(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = {"stream": "s", "id": "1-0", "group": "g", "stage": "read", "reason": "odd"}
    with server.client() as client:
        for n, name, value in ((b"1", b"a=b", b"c"), (b"2", b"a", b"b=c")):
            fields = dead_letter_fields([b"n", n, name, value], envelope)
            client.execute_command("XADD", DEAD, "*", *fields)
    monkeypatch.setenv("RSTREAM_URL", server.url)
    assert call(monkeypatch, *arguments(tmp_path, 'letters.fields={"a=b" = "c"}', "redrive.to=retry")) == 0
    assert numbers(server, "retry") == [1]


@pytest.mark.in_turn
def test_dead_letters_that_name_no_target_stream_are_reported(engine_server: Server, tmp_path: Path) -> None:
    with engine_server.client() as client:
        client.flushall()
    fill(engine_server, 3, into=DEAD, stream="")
    done = run(engine_server, tmp_path)
    assert (done.returncode, summary(tmp_path)["homeless"], summary(tmp_path)["moved"]) == (0, 3, 0), done.stderr
    assert "left 1 × decode →" in done.stdout
    assert f"3 dead letters name no original stream, or name {DEAD}: set redrive.to" in done.stdout


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        (
            ["redrive.max_redrive=1"],
            2,
            "[RSTREAM_CONFIG] {conf}/reprocess_dead_letters.toml: unknown key redrive.max",
        ),
        (["redrive.rate=0"], 2, "[RSTREAM_CONFIG] redrive.rate must be at least 1"),
        (["letters.reasons=[1]"], 2, "[RSTREAM_CONFIG] letters.reasons must be a list of strings, not [1]"),
        (["letters.older=soon"], 2, "[RSTREAM_INVALID_OPTION] older='soon': "),
        (["redrive.to=flights:dead"], 2, "[RSTREAM_INVALID_OPTION] dead letters of 'flights:dead' cannot be sent to"),
        (["redrive.transform=nowhere:x"], 1, "[RSTREAM_TRANSFORM] transform 'nowhere:x': nowhere cannot be imported"),
        ([], 1, "[RSTREAM_STREAM_MISSING] no stream 'flights:dead' at "),
    ],
)
def test_what_is_wrong_is_one_line(
    engine_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    settings: list[str],
    code: int,
    message: str,
) -> None:
    with engine_server.client() as client:
        client.flushall()
    monkeypatch.setenv("RSTREAM_URL", engine_server.url)
    ended = call(monkeypatch, *arguments(tmp_path, *settings))
    said = capsys.readouterr().err
    assert (ended, said.count("\n")) == (code, 1), said
    assert said.startswith(f"reprocess_dead_letters: {message.format(conf=CONF)}")


def test_forged_dead_letters_are_not_moved_and_are_printed_as_text(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another client chose reason and stream: they are printed without markup and control characters."""
    fill(server, 3, into=DEAD)
    forged = {"reason": "[/]\x9b[bold]", "stream": "[red]pay\u202e"}
    fill(server, 2, first=7, into=DEAD, has_group=False, **forged)
    monkeypatch.setenv("RSTREAM_URL", server.url)
    assert call(monkeypatch, *arguments(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "2 × [/]\\x9b[bold] → [red]pay\\u202e" in shown
    assert "2 dead letters stay: no query has recorded their stream and group as an origin" in shown
    assert (summary(tmp_path)["moved"], summary(tmp_path)["refused"]) == (3, 2)
    assert call(monkeypatch, *arguments(tmp_path, 'redrive.allow=["*pay*"]')) == 0
    assert sorted(numbers(server, "[red]pay\u202e")) == [7, 8]
