"""Every test has a leg of scripts/test that runs it, and every leg is run by `scripts/test --all` or by a workflow."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from tools.pytest_of_leg import LEG_OF_MARKER
from tools.side_by_side import ROOT, folders

pytestmark = pytest.mark.in_turn(6)

SCRIPT = (ROOT / "scripts" / "test").read_text(encoding="utf-8")
WORKFLOWS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
# Prints each test with its markers.
COLLECT = """
import sys, pytest
class Collector:
    def pytest_collection_finish(self, session):
        for item in session.items:
            print("::test", item.nodeid.replace(chr(10), " "), *{mark.name for mark in item.iter_markers()}, sep="\\t")
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "", "tests"], [Collector()]))
"""


class Run(NamedTuple):
    """A pytest of a leg: a marker expression, folders or files (empty: all), and those without which."""

    marks: str
    paths: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def has(self, test: str, markers: set[str]) -> bool:
        """Return whether this pytest runs a test."""
        file = PurePosixPath(test.partition("::")[0])
        if self.paths and not any(file.is_relative_to(path) for path in self.paths):
            return False
        if any(file.is_relative_to(path) for path in self.ignored):
            return False
        names = {name: name in markers for name in re.findall(r"[a-z_]+", self.marks)}
        return bool(eval(self.marks, {}, names))  # as pytest does


def default_marks() -> str:
    """Return the markers that a pytest leaves out if its command does not say otherwise."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^addopts = .*-m '([^']+)'", text, re.M)
    assert found is not None
    return found[1]


def legs() -> Mapping[str, list[Run]]:
    """Return each leg of scripts/test that is a pytest with arguments, and plain `scripts/test` with all its turns."""
    found: dict[str, list[Run]] = {"--both": [Run(default_marks(), tuple(folders()))]}
    for leg, block in re.findall(r'^if \[ "\$\{1-\}" = (--[a-z-]+) \]; then\n(.*?)^fi$', SCRIPT, re.M | re.S):
        for line in re.findall(r"-m pytest (-m .*)$", block, re.M):
            words = shlex.split(line.partition("||")[0])
            ignored = [words[at + 1] for at, word in enumerate(words) if word == "--ignore"]
            paths = [word for word in words[2:] if word.startswith("tests/") and word not in ignored]
            found.setdefault(leg, []).append(Run(words[1], tuple(paths), tuple(ignored)))
    return found


@pytest.fixture(scope="module")
def tests() -> dict[str, set[str]]:
    """Every test with its markers, whatever its leg."""
    command = [sys.executable, "-c", COLLECT]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    lines = [line.split("\t") for line in ended.stdout.splitlines() if line.startswith("::test\t")]
    return {test: {*markers} for _, test, *markers in lines}


def test_every_test_is_in_a_leg(tests: dict[str, set[str]]) -> None:
    runs = [run for of_leg in legs().values() for run in of_leg]
    assert len(tests) > 5_000
    assert [test for test, markers in tests.items() if not any(run.has(test, markers) for run in runs)] == []


def test_the_leg_that_the_end_of_a_run_names_has_the_test(tests: dict[str, set[str]]) -> None:
    """Of each marker whose tests the others leave out, and of no other marker."""
    assert set(re.findall(r"not ([a-z]+)", default_marks())) == set(LEG_OF_MARKER)
    for marker, leg in LEG_OF_MARKER.items():
        of_marker = {test: markers for test, markers in tests.items() if marker in markers}
        assert of_marker, marker
        others = {*LEG_OF_MARKER} - {marker}
        for test, markers in of_marker.items():
            if not markers & others:
                assert any(run.has(test, markers) for run in legs()[leg]), f"{leg} does not run {test}"


def test_every_leg_is_run_by_all_or_by_a_workflow() -> None:
    described = set(re.findall(r"^#   scripts/test (--[a-z-]+)", SCRIPT, re.M))
    every = re.search(r"for leg in (.*?); do", SCRIPT)
    assert every is not None
    by_all = {words.split()[0] for words in shlex.split(every[1])}
    by_workflow = set(re.findall(r"scripts/test (--[a-z-]+)", WORKFLOWS))
    assert described - {"--all"} - by_all - by_workflow == set()
    assert by_all | set(legs()) <= described


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_prints_the_legs_and_sets_nothing_up(tmp_path: Path, word: str) -> None:
    copied = shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    ended = subprocess.run([copied / "test", word], capture_output=True, text=True, check=False, timeout=10)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("Sets everything up, then runs tests")
    assert lines[-1].startswith("  scripts/test tests/connector/wire -k name")
    assert [one.name for one in tmp_path.iterdir()] == ["scripts"]
