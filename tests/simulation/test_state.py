"""Plans go on where they have stopped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tools.simulation import state
from tools.simulation.soak import Tally, in_parallel
from tools.simulation.state import State

SEEDS, ADDITIONS = range(40, 52), ("faults",)


def advance(path: Path, seconds: float = float("inf"), jobs: int = 1) -> Tally:
    """Run the plans that are left."""
    here, total = State.read(path, ADDITIONS, SEEDS), Tally()
    for next_seed, tally in in_parallel("process", here.left, jobs, seconds, ADDITIONS):
        total = here.after(next_seed, tally)
    return total


def test_plans_go_on_where_they_have_stopped(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped.json"
    assert advance(stopped, seconds=0).runs == 10
    assert State.read(stopped, ADDITIONS, SEEDS).left == range(50, 52)
    both, at_once = advance(stopped, jobs=2), advance(tmp_path / "at_once.json")
    assert dataclasses.replace(both, seconds=0) == dataclasses.replace(at_once, seconds=0)
    assert not State.read(stopped, ADDITIONS, SEEDS).left
    assert State.read(stopped, ("renew",), SEEDS).left == SEEDS


def test_the_file_says_which_commit_has_run_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    for commit, next_seed in (("first", 45), ("second", 48)):
        monkeypatch.setattr(state, "_commit", lambda commit=commit: commit)
        here = State.read(path, ADDITIONS, SEEDS)
        here.after(next_seed, Tally(runs=len(range(here.left.start, next_seed))))
    assert json.loads(path.read_text())["faults"]["commits"] == {"first": 5, "second": 3}
    assert "other commits, too: {'first': 5}" in capsys.readouterr().err


def test_plans_of_other_seeds_are_not_mixed(tmp_path: Path) -> None:
    State.read(tmp_path / "state.json", (), SEEDS).after(45, Tally(runs=5))
    with pytest.raises(SystemExit, match="set --seed 40"):
        State.read(tmp_path / "state.json", (), range(41, 60))
