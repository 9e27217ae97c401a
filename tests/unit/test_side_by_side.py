"""scripts/test runs all tests, whichever folders there are."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.servers import redis_server_path
from tests.side_by_side import BY_TURNS, FIRST, ON_ANOTHER_SPARK, PARTS, ROOT, folders, parts, short_parts, wanted


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
    assert [part.folder for part in parts() if part.folder not in PARTS] == [
        one for one in folders() if one not in PARTS
    ]


def test_what_runs_on_another_spark_is_there() -> None:
    assert {part.folder for part in wanted(["--spark"])} == set(ON_ANOTHER_SPARK)
    assert wanted(["--both"]) == parts()
    assert [part._replace(options=()) for part in wanted([])] == parts()
    assert {part.folder for part in wanted([]) if part.options} == set(BY_TURNS)
    assert all((ROOT / path).exists() for part in short_parts() for path in part.paths)
    assert {part.folder for part in short_parts()} <= set(ON_ANOTHER_SPARK)


def test_two_turns_run_every_test_and_no_test_of_a_server_twice() -> None:
    def collected(**turn: str) -> list[str]:
        """Of a small folder."""
        words = [
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            *(["--by-turns"] if turn else []),
            "tests/deadletter",
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
