"""All tests, some folders at a time, each in a pytest of its own: `python -m tools.side_by_side`, as scripts/test does.

`--spark`: only what knows of Spark, for a Python that has another one; `--short`: some minutes of it. `--both`: the
tests of BY_TURNS on both servers each, as with `--spark`, and not on one of them.

Most of them wait, for Spark above all. A pytest has servers, a Spark and a temporary folder of its own, so that nothing
is shared. What it says is shown whole when it has ended; the exit code is that of the first folder, in the order in
which they began, whose tests did not all pass. PYTEST_ADDOPTS adds to the options of each.

A few tests that failed are run once more when everything else has ended: a busy machine may have been too slow for
them. Those that pass then do not count as failed. They are listed at the end, because they are defects of the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# What takes longest begins first; a folder that is not named here is run, too.
# A Spark waits most of the time. With too many at once its Python processes come too late for it: in ten seconds.
SPARK = ["tests/spark", "tests/faults", "tests/jobs", "tests/sink", "tests/notebooks", "tests/recipes", "tests/connect"]
FIRST = [*SPARK, "tests/source", "tests/engine"]
# Folders that would take longer than all others: each so many legs, which share its files.
PARTS = {"tests/spark": 3}
# Tests of how Spark goes with us, of which each costs a query or a Spark: on the engine or redis-server, by turns. How
# a server goes with us is shown by the other folders, on both.
BY_TURNS = ["tests/spark", "tests/faults", "tests/jobs", "tests/recipes", "tests/connect"]
# Where scripts/test has set it up: a Python with what Spark Connect and the recipes need, and what runs in that.
OF_CONNECT = Path(sys.prefix) / "connect" / "bin" / "python"
IN_CONNECT = SPARK[-2:]
# What depends on Spark, or is told by it how things are; and the part of it that shows most in little time: the side
# of the driver, a query from end to end, how one ends. (Not Spark Connect, no recipes, and no notebooks.)
ON_ANOTHER_SPARK = [*SPARK[:-3], "tests/source", "tests/running", "tests/project"]
SHORT = {
    "tests/spark": ("tests/spark/test_end_to_end.py",),
    "tests/faults": ("tests/faults/test_endings.py",),
    "tests/source": ("tests/source/microbatch", "tests/source/test_batch_starts.py"),
}
CORES = min(5, os.cpu_count() or 1)
SPARKS_AT_ONCE = CORES + 1
AT_ONCE = CORES + 2  # beside the Sparks, which wait much, one folder that needs none
AGAIN = 10  # so many failed tests at most are run again
NO_TESTS = 5  # pytest's exit code where none is left after -m
INTERRUPTED = 130
_FILE_NAME = str.maketrans(" /", "--")


class Part(NamedTuple):
    """What one pytest runs: a folder, or some files of it. name: "tests/spark 1/2" where it is not the whole."""

    name: str
    folder: str
    paths: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass
class Leg:
    """The pytest of one part."""

    part: Part
    home: Path
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    again: Leg | None = None  # the tests that failed, run once more

    def __post_init__(self) -> None:
        (self.home / "tmp").mkdir(parents=True)
        environment = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        own = ["-o", f"cache_dir={self.home / 'cache'}", f"--basetemp={self.home / 't'}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "pytest", *own, *self.part.options, *self.part.paths],
                cwd=ROOT,
                env={**environment, "TMPDIR": str(self.home / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it is interrupted once, by us
            )

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def python(self) -> str:
        """What runs it."""
        return str(OF_CONNECT) if self.part.folder in IN_CONNECT and OF_CONNECT.exists() else sys.executable

    @property
    def log(self) -> Path:
        """What it says."""
        return self.home / "log"

    @property
    def code(self) -> int:
        """pytest's exit code, 0 if there is no test, or if what failed has passed when it was run again."""
        if self.again is not None and self.again.process.returncode == 0:
            return 0
        return 0 if self.process.returncode == NO_TESTS else self.process.returncode

    def said(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def has_ended(self) -> bool:
        """Whether it has; the first time, its seconds are noted."""
        if self.process.poll() is None:
            return False
        self.seconds = time.monotonic() - self.began
        return True

    def failed(self) -> dict[str, bool]:
        """What pytest --lf would run again."""
        try:
            found: dict[str, bool] = json.loads((self.home / "cache" / "v" / "cache" / "lastfailed").read_text())
        except FileNotFoundError:
            return {}
        return found


def folders() -> list[str]:
    """Every folder with tests, in the order in which they begin."""
    found = sorted({f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in ROOT.glob("tests/*/**/test_*.py")})
    return [name for name in FIRST if name in found] + [name for name in found if name not in FIRST]


def parts() -> list[Part]:
    """Every folder, or its parts, in the order in which they begin."""
    found = list[Part]()
    for folder in folders():
        files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"{folder}/**/test_*.py"))
        count = PARTS.get(folder, 1)
        if count == 1:
            found.append(Part(folder, folder, (folder,)))
        else:
            found += [Part(f"{folder} {n + 1}/{count}", folder, tuple(files[n::count])) for n in range(count)]
    return found


def short_parts() -> list[Part]:
    """Some minutes of what knows of Spark."""
    return [Part(name, name.split(" ")[0], paths) for name, paths in SHORT.items()]


def run(home: Path, waiting: list[Part]) -> Generator[Leg, None, None]:
    """All legs, each when it has ended."""
    running = list[Leg]()
    try:
        while waiting or running:
            for part in list(waiting):
                sparks = sum(leg.part.folder in SPARK for leg in running)
                if len(running) < AT_ONCE and (sparks < SPARKS_AT_ONCE or part.folder not in SPARK):
                    waiting.remove(part)
                    running.append(Leg(part, home / part.name.removeprefix("tests/").translate(_FILE_NAME)))
            for leg in [leg for leg in running if leg.has_ended()]:
                running.remove(leg)
                yield leg
            time.sleep(0.1)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for leg in running:
            leg.process.send_signal(signal.SIGINT)
        for leg in running:
            try:
                leg.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(leg.process.pid, signal.SIGKILL)
                leg.process.wait()
            show(leg)


def run_again(home: Path, legs: list[Leg]) -> None:
    """Run the tests that failed once more, a folder after the other, with nothing beside them."""
    failed = [(leg, [*leg.failed()]) for leg in legs if leg.code and leg.failed()]
    if sum(len(tests) for _, tests in failed) > AGAIN:
        return
    for leg, tests in failed:
        part = Part(f"{leg.name} again", leg.part.folder, tuple(tests))
        leg.again = Leg(part, home / part.name.removeprefix("tests/").translate(_FILE_NAME))
        leg.again.process.wait()
        show(leg.again)


def show(leg: Leg) -> None:
    """All that it has said."""
    print(f"\n{f' {leg.name} ':#^120}\n", *leg.said(), sep="\n", flush=True)


def remember(legs: list[Leg]) -> None:
    """Let `scripts/test --lf` know what has failed."""
    cache = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({name: True for leg in legs for name in leg.failed()}))


def sum_up(legs: list[Leg]) -> None:
    """A line for each leg, and what did not pass."""
    print(f"\n{' all ':#^120}\n")
    for leg in legs:
        print(f"{leg.name:17} {leg.seconds:5.0f} s   {leg.said()[-1].strip('= ') if leg.said() else 'said nothing'}")
    for leg in legs:
        if leg.code or leg.again is not None:
            print(*[line for line in leg.said() if line.startswith(("FAILED ", "ERROR "))], sep="\n")
        if leg.again is not None:
            print(f"run again alone: {leg.again.said()[-1].strip('= ')}")


def wanted(words: list[str]) -> list[Part]:
    """What the command line asks for."""
    if "--short" in words:
        return short_parts()
    if "--spark" in words:
        return [part for part in parts() if part.folder in ON_ANOTHER_SPARK]
    turns = () if "--both" in words else BY_TURNS
    return [part._replace(options=("--by-turns",)) if part.folder in turns else part for part in parts()]


def main() -> int:
    """Exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="rs-"))  # short: a socket's path has a hundred bytes at most
    legs: list[Leg] = []
    try:
        with contextlib.closing(run(home, wanted(sys.argv[1:]))) as ended:
            for leg in ended:
                show(leg)
                legs.append(leg)
    except KeyboardInterrupt:
        print("interrupted")
        shutil.rmtree(home, ignore_errors=True)
        return INTERRUPTED
    legs.sort(key=lambda leg: leg.began)
    remember(legs)
    run_again(home, legs)
    sum_up(legs)
    code = next((leg.code for leg in legs if leg.code), 0)
    print(f"{'failed' if code else 'passed'} in {time.monotonic() - began:.0f} s, {AT_ONCE} at a time")
    if code:
        print(f"what they left is in {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return code


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
