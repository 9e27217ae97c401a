"""scripts/test runs all tests, whichever folders there are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import machine_time, side_by_side
from tools.servers.server import redis_server_path
from tools.side_by_side import (
    BY_TURNS,
    FIRST,
    LEFT_OUT,
    MAX_REPEATS,
    ON_ANOTHER_SPARK,
    PARTS,
    ROOT,
    TOGETHER,
    Leg,
    Part,
    folders,
    folders_without,
    parts,
    quick_parts,
    run_again,
    select_parts,
    short_parts,
)

pytestmark = pytest.mark.in_turn(4)


def test_no_test_is_left_out() -> None:
    tests = [path.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py")]
    assert all(any(path.is_relative_to(folder) for folder in folders()) for path in tests)
    assert len(folders()) == len(set(folders()))
    assert set(FIRST) <= set(folders())


def test_the_parts_of_a_folder_are_the_folder() -> None:
    for folder, count in PARTS.items():
        shares = [part.paths for part in parts() if part.folder == folder]
        files = [path for share in shares for path in share]
        assert sorted(files) == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"{folder}/**/test_*.py"))
        assert (len(shares), len(set(files))) == (count, len(files))
    alone = [one for one in folders() if one not in PARTS and one not in TOGETHER]
    shares = [part.paths for part in parts() if part.folder not in PARTS]
    assert [share for share in shares if share != tuple(TOGETHER)] == [(one,) for one in alone]
    assert shares.count(tuple(TOGETHER)) == 1
    assert set(TOGETHER) <= {*folders()} - {*ON_ANOTHER_SPARK, *PARTS}


def test_what_runs_on_another_spark_is_there() -> None:
    assert {part.folder for part in select_parts(["--spark"])} == set(ON_ANOTHER_SPARK)
    assert select_parts(["--both"]) == parts()
    assert sorted(path for part in select_parts([]) for path in part.paths) == sorted(folders())
    assert all((ROOT / path).exists() for part in short_parts() for path in part.paths)
    assert {part.folder for part in short_parts()} <= set(ON_ANOTHER_SPARK)


def test_a_quick_run_names_the_folders_that_it_leaves_out() -> None:
    assert all((ROOT / path).exists() for part in quick_parts() for path in part.paths)
    paths = [Path(path) for part in quick_parts() for path in part.paths]
    ran = {folder for folder in folders() if any(path.is_relative_to(folder) for path in paths)}
    assert {*folders_without(quick_parts())} == {*folders()} - ran
    assert {"tests/connector/spark", "tests/operations/console"} <= {*folders_without(select_parts(["--quick"]))}
    assert folders_without(parts()) == []


def test_what_runs_by_turns_is_there() -> None:
    assert {part.options for part in select_parts([])} == {("--in-turn", *(f"--by-turns={path}" for path in BY_TURNS))}
    assert {part.options for words in (["--both"], ["--spark"], ["--short"]) for part in select_parts(words)} == {()}
    assert all((ROOT / path).exists() for path in BY_TURNS)


def test_two_turns_run_every_test_and_no_test_of_a_server_twice() -> None:
    def collected(**turn: str) -> list[str]:
        """Of a small folder, and of a file whose tests share a parameter `kind`."""
        words = [
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            *(["--by-turns=tests"] if turn else []),
            "tests/connector/deadletter",
            "tests/legs/faults/test_killed_driver.py",
        ]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=ROOT, env={**os.environ, **turn},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [line for line in run.stdout.splitlines() if "::" in line]

    everything, even, odd = collected(), collected(RSTREAM_SEED="8"), collected(RSTREAM_SEED="7")
    assert set(even) | set(odd) == set(everything)
    twice = set(even) & set(odd)
    if redis_server_path() is None:
        assert twice == set(everything)
    else:
        assert len(everything) / 3 < len(even) < 2 * len(everything) / 3
        assert not [one for one in twice if "[engine" in one or "[redis" in one]


def leg_of(home: Path, body: str) -> Leg:
    """The ended pytest of a file with these lines."""
    home.mkdir()
    tests = home / "test_some.py"
    tests.write_text(body)
    leg = Leg(Part(f"tests/{home.name}", "tests/some", (str(tests),)), home / "leg")
    leg.process.wait()
    return leg


@pytest.fixture
def project_folder() -> Iterator[Path]:
    """A folder of the project: names of tests are those that pytest takes."""
    cache = ROOT / ".pytest_cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        yield Path(folder)


WITH_TURNS = {
    "test_some.py": """
import pytest
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.in_turn(2))])
def test_each(n): pass
@pytest.mark.in_turn(0)
def test_long(): pass
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.in_turn(1)
def test_longer(n): pass
""",
    "test_chain.py": """
import pytest
pytestmark = pytest.mark.in_turn(1)
def test_first(): pass
def test_second(): pass
""",
}


def run_with_turns(folder: Path, *words: str, seed: int = 0) -> subprocess.CompletedProcess[str]:
    """Pytest of these files, as a leg runs it."""
    words = ("-v", "-p", "no:cacheprovider", "-p", "tests.conftest", *words, str(folder))
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT, env={**os.environ, "RSTREAM_SEED": str(seed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_turns_run_every_test_that_takes_long_once(project_folder: Path) -> None:
    """And each says which tests it left out: of a whole file, its name."""
    for name, body in WITH_TURNS.items():
        (project_folder / name).write_text(body)

    def names(text: str) -> str:
        return text.replace(f"{project_folder.relative_to(ROOT)}/", "")

    def ran(*words: str, seed: int = 0) -> tuple[list[str], list[str]]:
        run = run_with_turns(project_folder, *words, seed=seed)
        assert run.returncode == 0, run.stdout + run.stderr
        lines = names(run.stdout).splitlines()
        tests = sorted(line.split(" ")[0] for line in lines if " PASSED" in line)
        return tests, [line.removeprefix(LEFT_OUT) for line in lines if line.startswith(LEFT_OUT)]

    turns = [ran("--in-turn", seed=seed) for seed in (7, 8, 9)]
    long = ["test_each[2]", "test_long", "test_longer[1]", "test_longer[2]"]
    once = ["test_chain.py::test_first", "test_chain.py::test_second", *(f"test_some.py::{name}" for name in long)]
    each_time = 3 * ["test_some.py::test_each[1]"]
    assert sorted(test for tests, _ in turns for test in tests) == sorted(once + each_time)
    assert ran(seed=7) == (sorted({*once, *each_time}), [])
    assert [told for _, told in turns] == [
        ["test_chain.py, test_some.py::test_each, test_some.py::test_longer"],
        ["test_some.py::test_each, test_some.py::test_long"],
        ["test_chain.py, test_some.py::test_long, test_some.py::test_longer"],
    ]


def test_a_turn_that_never_comes_is_refused(project_folder: Path) -> None:
    (project_folder / "test_some.py").write_text(WITH_TURNS["test_some.py"].replace("in_turn(2)", "in_turn(7)"))
    run = run_with_turns(project_folder)
    assert run.returncode != 0
    assert "in_turn(7)" in run.stdout + run.stderr


def test_the_end_says_once_what_was_left_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {name: [f"{LEFT_OUT}tests/{name}/test_some.py", "1 passed"] for name in "ab"} | {"c": ["1 passed"]}
    monkeypatch.setattr(Leg, "__post_init__", lambda leg: None)
    monkeypatch.setattr(Leg, "output", lambda leg: said[leg.name])
    monkeypatch.setattr(Leg, "code", 0)
    side_by_side.sum_up([Leg(Part(name, name, ()), Path(name)) for name in said])
    (told,) = [line for line in capfd.readouterr().out.splitlines() if "another turn" in line]
    assert told == f"{LEFT_OUT}2 files and single tests, which the output of their folders names"


def test_the_end_says_how_many_tests_ran_and_which_leg_has_the_others(project_folder: Path) -> None:
    (project_folder / "test_some.py").write_text("""
import pytest
def test_fine(): pass
@pytest.mark.long
def test_long(): pass
@pytest.mark.in_turn(1)
def test_longer(): pass
@pytest.mark.in_turn(0)
def test_today(): pass
""")
    counts = project_folder / "counts"
    run = run_with_turns(project_folder, "--in-turn", "-p", "tools.pytest_of_leg", f"--counts={counts}")
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads(counts.read_text()) == {"ran": 2, "not_run": {"--long": 1, "--both": 1}}
    told = side_by_side.told_counts(
        [(2, Counter({"--long": 1})), (1_000, Counter({"--long": 2, "--both": 1})), (0, Counter())]
    )
    assert told == "ran 1,002 of 1,006 tests; not run: 3 --long, 1 --both (scripts/test LEG)"
    assert side_by_side.told_counts([(2, Counter())]) == "ran 2 of 2 tests"


def test_a_test_that_waits_forever_fails_and_is_run_again(
    project_folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import threading
from pathlib import Path
def test_waits():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        threading.Event().wait()
def test_after_it():
    pass
"""
    monkeypatch.setattr(side_by_side, "TEST_SECONDS", 1)
    leg = leg_of(project_folder / "waits", body)
    assert [name.rpartition("::")[2] for name in leg.failed()] == ["test_waits"]
    assert "threading.Event().wait()" in "\n".join(leg.output())
    run_again(project_folder / "again", [leg])
    assert leg.code == 0
    assert "1 passed" in capfd.readouterr().out


def test_a_pytest_that_does_not_end_is_ended(project_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = project_folder / "test_some.py"
    tests.write_text("import threading\nat_import = threading.Event().wait()\n")
    monkeypatch.setattr(side_by_side, "LEG_SECONDS", 2)
    (leg,) = side_by_side.run(project_folder, [Part("tests/some", "tests/some", (str(tests),))])
    assert leg.code == -signal.SIGABRT
    assert "test_some.py" in "\n".join(leg.output())
    tests.write_text("def test_some():\n    pass\n")
    monkeypatch.setattr(side_by_side, "LEG_SECONDS", 120)  # on a busy machine pytest alone takes longer than the first
    run_again(project_folder / "again", [leg])
    assert leg.code == 0


def test_what_fails_is_run_again_alone(project_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Only what fails again counts."""
    late = """
from pathlib import Path
def test_late():
    seen = Path(__file__).with_name("seen")
    was_there = seen.exists()
    seen.touch()
    assert was_there
def test_fine():
    assert not Path(__file__).with_name("seen").exists() or True
"""
    wrong = "def test_wrong():\n    assert False\n"
    many = f"import pytest\n@pytest.mark.parametrize('n', range({MAX_REPEATS + 1}))\ndef test_n(n):\n    assert False\n"
    legs = [leg_of(project_folder / "late", late), leg_of(project_folder / "wrong", wrong)]
    assert [leg.code for leg in legs] == [1, 1]
    run_again(project_folder / "again", legs)
    assert [leg.code for leg in legs] == [0, 1]
    assert "1 passed" in capfd.readouterr().out
    too_many = leg_of(project_folder / "many", many)
    run_again(project_folder / "more", [too_many])
    assert (too_many.code, too_many.repeat) == (1, None)


def test_a_test_that_is_run_again_can_stop_a_program(project_folder: Path) -> None:
    """The repetition inherits no ignored SIGTERM: a JVM then has no handler, and a job goes on forever."""
    stops = """
import signal, subprocess, sys
from pathlib import Path
def test_stops():
    seen = Path(__file__).with_name("seen")
    was_there = seen.exists()
    seen.touch()
    program = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    program.stdout.readline()
    program.terminate()
    assert program.wait(30) == -signal.SIGTERM
    assert was_there
"""
    tests = project_folder / "test_stops.py"
    tests.write_text(stops)
    (leg,) = side_by_side.run(project_folder, [Part("tests/stops", "tests/stops", (str(tests),))])
    assert "assert was_there" in "\n".join(leg.output())
    run_again(project_folder / "again", [leg])
    assert leg.code == 0
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_limit_is_longer_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    now, load = 100.0, 0.5
    monkeypatch.setattr(machine_time.time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    clock = machine_time.MachineClock()
    now += 10
    assert clock() == 10
    load = 8.0
    now += 10
    assert clock() == 12.5
    load = 1_000_000.0
    now += 100
    assert clock() == 12.5 + 100 * machine_time.SLOWEST
