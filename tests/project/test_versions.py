"""Servers of other versions: which there are, how they are started, what is counted of the tests on them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.legs.versions import folder
from tests.legs.versions.__main__ import ready
from tests.legs.versions.folder import PACKAGE, NotToBeHadError, checked, emptied, link, start_on_own_libraries
from tests.legs.versions.stream_tests import Outcome, counted, print_table
from tests.legs.versions.wanted import WANTED, named


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folder, "HOME", tmp_path / "a place")
    return tmp_path / "a place"


def program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


def test_servers_are_named() -> None:
    only_if_named = ("redis-6.2", "redis-path")
    assert [one.name for one in named([])] == [one.name for one in WANTED if one.name not in only_if_named]
    assert [one.version for one in named(["redis-path"])] == [""]
    assert [one.version for one in named(["redis-8.6", "valkey-9"])] == ["8.6.", "9."]
    with pytest.raises(ValueError, match="no server redis-5: there are redis-7.0, redis-8.0"):
        named(["redis-7.0", "redis-5"])


def test_a_program_is_started_by_its_own_loader_on_its_own_libraries(home: Path) -> None:
    """Wherever the folder is, and under the name by which it knows what it is."""
    made = emptied("redis-9")
    program(made / PACKAGE / "usr" / "lib" / "ld-linux-x86-64.so.2", 'for word in "$@"; do echo "$word"; done')
    program(made / PACKAGE / "usr" / "lib" / "x" / "libc.so.6", "")
    start_on_own_libraries(made, "redis-server", program(made / PACKAGE / "usr" / "bin" / "check-rdb", ""))
    moved = made.rename(made.with_name("moved"))
    package = moved / PACKAGE
    said = subprocess.run([moved / "bin" / "redis-server", "--port", "a b"], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        *("--library-path", f"{package}/usr/lib/x", "--argv0", "redis-server"),
        *(f"{package}/usr/bin/check-rdb", "--port", "a b"),
    ]


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("echo 'Redis server v=8.8.0 sha=0'", "it is 8.8.0 there"),
        ("echo 'no library' >&2; exit 127", "does not run: no library"),
    ],
)
def test_a_server_of_another_version_or_one_that_does_not_run_is_none(home: Path, says: str, reason: str) -> None:
    made = emptied("redis-8.6")
    link(made, "redis-server", program(made / PACKAGE / "server", says))
    with pytest.raises(NotToBeHadError, match=reason):
        checked("redis-8.6", "8.6.")
    link(emptied("redis-8.6"), "redis-server", program(made / PACKAGE / "server", "echo 'Redis server v=8.6.3 sha=0'"))
    assert checked("redis-8.6", "8.6.") == "8.6.3"


def test_the_installed_server_is_tested_whatever_its_version(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = program(home.with_name("machine") / "redis-server", "echo 'Redis server v=8.10.1 sha=0'")
    monkeypatch.setenv("PATH", str(installed.parent), prepend=":")
    monkeypatch.setattr("tests.legs.versions.__main__.ROOT", home)
    assert ready(*named(["redis-path"])) == ("8.10.1", "redis-path/bin/redis-server --port 6390")


def test_a_line_for_each_server(capsys: pytest.CaptureFixture[str]) -> None:
    results = """<testsuites><testsuite tests="1240" skipped="10" failures="2" errors="1">
    </testsuite></testsuites>"""
    [one] = named(["redis-8.6"])
    found = counted(one, "8.6.3", 150.0, results)
    assert (found.passed, found.failed, found.skipped, found.is_well) == (1227, 3, 10, False)
    print_table([found, Outcome("redis-8.6", None, said="not to be had: no apt")])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "redis-8.6   8.6.3        1,227        3       10      2.5",
        "redis-8.6   -           not to be had: no apt",
    ]
    fine = results.replace('"2"', '"0"').replace('"1"', '"0"')
    assert counted(one, "", 1.0, fine).is_well
