"""The tests of stream behaviour on servers of every version, one after the other: `scripts/test --servers`.

    scripts/test --servers                                   all servers
    scripts/test --servers redis-8.6 valkey-9                these
    scripts/test --servers redis-8.6 tests/connector/sink -k ledger    and of the tests these only

What pytest says is shown as it comes; at the end there is a line for each server. Exit code 1 where a test failed, or a
server cannot be had.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.legs.versions.__main__ import ready
from tests.legs.versions.folder import ROOT, bin_of
from tests.legs.versions.wanted import Wanted, named

TESTS = [
    *(
        "tests/connector/source",
        "tests/connector/sink",
        "tests/connector/shards",
        "tests/connector/deadletter",
        "tests/connector/wire",
        "tests/operations/monitor",
        "tests/operations/doctor",
    ),
    "tests/connector/spark/test_end_to_end.py",
    *("tests/legs/redis_cluster", "tests/legs/sentinel"),
]


@dataclass(frozen=True)
class Outcome:
    """Of the tests on one server. said: instead of numbers, why there are none."""

    name: str
    version: str | None
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    said: str = ""

    @property
    def is_well(self) -> bool:
        return not self.said and not self.failed

    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        if self.said:
            return self.name, self.version or "-", self.said
        numbers = (f"{count:,}" for count in (self.passed, self.failed, self.skipped))
        return self.name, self.version or "-", *numbers, f"{self.seconds / 60:.1f}"


def main(words: list[str]) -> int:
    """Exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    count = next((at for at, word in enumerate(words) if not word.startswith(("redis-", "valkey-"))), len(words))
    try:
        wanted = named(words[:count])
    except ValueError as error:
        print(f"scripts/test --servers: {error}", file=sys.stderr)
        return 2
    outcomes = [tested(one, words[count:] or TESTS) for one in wanted]
    print()
    print_table(outcomes)
    return int(not all(one.is_well for one in outcomes))


def tested(one: Wanted, tests: list[str]) -> Outcome:
    """What came of these tests on this server."""
    version, how = ready(one)
    if version is None:
        return Outcome(one.name, None, said=how)
    print(f"\n{f' {one.name}: {version} ':=^120}\n", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rs-") as home:
        results = Path(home) / "results.xml"
        code = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "tests.legs.versions.real_only",
                f"--junitxml={results}",
                *tests,
            ],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{bin_of(one.name)}:{os.environ['PATH']}", "TMPDIR": home},
            check=False,
        ).returncode
        seconds = time.monotonic() - began
        if code not in (0, 1) or not results.exists():
            return Outcome(one.name, version, seconds, said=f"pytest ended with {code}")
        return counted(one, version, seconds, results.read_text())


def counted(one: Wanted, version: str, seconds: float, results: str) -> Outcome:
    """From what pytest has written (--junitxml)."""
    suite = ElementTree.fromstring(results).find("testsuite")
    assert suite is not None
    tests, skipped, failures, errors = (int(suite.attrib[of]) for of in ("tests", "skipped", "failures", "errors"))
    failed = failures + errors
    passed = tests - skipped - failed
    return Outcome(one.name, version, seconds, passed, failed, skipped)


def print_table(outcomes: list[Outcome]) -> None:
    """A line for each server."""
    for name, version, *rest in [("server", "version", "passed", "failed", "skipped", "minutes"),
                                 *(one.cells() for one in outcomes)]:  # fmt: skip
        print(f"{name:10}  {version:8}", "".join(f"{cell:>9}" for cell in rest) if len(rest) > 1 else f"   {rest[0]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
