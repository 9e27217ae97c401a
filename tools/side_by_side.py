"""Run all tests, several folders at a time, each in its own pytest: `python -m tools.side_by_side` (scripts/test).

`--spark`: only tests that depend on Spark, for a Python with another version of it. `--short`: a selection of these
that takes some minutes. `--quick`: a selection that needs no Spark. `--both`: each test on both servers, and all tests
that need Spark or are marked in_turn. The end says which were left out. PYTEST_ADDOPTS adds to the options of each.

Most tests wait, mainly for Spark. Each pytest has its own servers, Spark and temporary folder. The exit code is that of
the first folder, in the order of their start, whose tests did not all pass. If only a few tests failed, they run once
more when all others have ended: a busy machine may have been too slow for them. Tests that pass then do not count as
failed. They are listed at the end, because they are defects of the tests.

A test that waits forever fails after TEST_SECONDS, with the stacks of all threads. A pytest that does not end is ended
after LEG_SECONDS with the same output, and runs again as a whole. Both are machine seconds (tools/machine_time.py).
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
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tools.day_seed import first_seed
from tools.machine_time import machine_seconds
from tools.processor_time import ProcessorTime

ROOT = Path(__file__).resolve().parents[1]
WITH_ROOMS = ("connector", "operations", "legs")  # below tests/
# Folders below tests/, and what is special about them. Those that are not named here run, too.
#   first: It takes long, so it begins early; in this order.
#   together: Its tests take seconds: one pytest runs all of these, and imports once what they share.
#   spark: A Spark waits most of the time. With too many at once, its Python processes need more than the ten seconds
#       that it allows.
#   connect: It may have a Python of its own (OF_CONNECT).
#   turns: Its tests take most of the time. Each test runs on the engine or redis-server, by turns, with a part of its
#       rows; `--both` runs all of them, as the nightly workflow does. The tests of other folders run on both.
#   1, 2, 3: If only the tests of one day run, these share a pytest, and so a Java process, or imports and servers.
#   reports: It depends on what Spark reports.
_FOLDERS = {
    "connector/spark": "first spark turns reports 1",
    "connector/source": "first turns reports",
    "jobs": "first spark turns reports",
    "simulation": "first turns",
    "operations/verify": "first turns",
    "operations/console": "first turns",
    "legs/faults": "first spark turns reports 1",
    "legs/recipes": "first spark connect turns 2",
    "legs/redis_cluster": "first",
    "engine": "first turns",
    "connector/sink": "first spark turns reports",
    "legs/sentinel": "first 3",
    "project": "first reports",
    "operations/transfer": "first turns 3",
    "operations/monitor": "first turns",
    "legs/connect": "first spark connect turns 2",
    "legs/notebooks": "first spark together",
    "base": "together",
    "connector/deadletter": "turns 3",
    "connector/lag": "together turns",
    "connector/options": "together",
    "connector/running": "reports",
    "connector/schemas": "turns 3",
    "connector/shards": "together turns",
    "connector/test_counters.py": "together",
    "connector/test_dead_letters.py": "together",
    "connector/test_version_1.py": "together",
    "connector/watch": "together turns",
    "connector/wire": "together turns",
    "legs/cluster": "together",
    "legs/console_browser": "together",
    "legs/engine_pyspark": "3",
    "legs/examples": "together",
    "legs/extras": "together",
    "legs/hostile": "turns 3",
    "legs/identity": "together",
    "legs/peers": "together",
    "legs/sail": "together",
    "legs/upgrade": "together",
    "operations/doctor": "together turns",
    "operations/groups": "together turns",
}


def _with(word: str) -> list[str]:
    return [f"tests/{folder}" for folder, words in _FOLDERS.items() if word in words.split()]


FIRST, TOGETHER, SPARK, BY_TURNS, IN_CONNECT = map(_with, ("first", "together", "spark", "turns", "connect"))
OF_ONE_DAY = [_with(number) for number in "123"]
ON_ANOTHER_SPARK = _with("reports")
# Folders that would take longer than all others: number of legs that share their files.
PARTS = {"tests/connector/spark": 3}
# Tests that need Spark, and others that are marked in_turn, run on one day of seven (tests/turns.py).
IN_TURNS = ("--in-turn", *(f"--by-turns={path}" for path in BY_TURNS))
LEFT_OUT = "left for another turn: "  # of a pytest's output (tests/conftest.py)
LONGEST = "longest request: "  # likewise
# A Python with the packages for Spark Connect and the recipes, if scripts/test has set it up.
OF_CONNECT = Path(sys.prefix) / "connect" / "bin" / "python"
# The most useful selection for a short run of tests that depend on Spark: the driver's side, a query from end to end,
# and the end of a query.
SHORT = {
    "tests/connector/spark": ("tests/connector/spark/test_end_to_end.py",),
    "tests/legs/faults": ("tests/legs/faults/test_endings.py",),
    "tests/connector/source": (
        "tests/connector/source/query",
        "tests/connector/source/trigger",
        "tests/connector/source/test_stream_reader_batch_starts.py",
    ),
}
# What a change needs first, without Spark: pure parts, the protocol, driver and sink on servers, some plans of the
# simulation. A pytest for each processor of a small machine.
QUICK = {
    "driver": (
        *("tests/base", "tests/connector/options", "tests/connector/source/query", "tests/connector/source/trigger"),
        "tests/simulation/test_process.py",
    ),
    "servers": ("tests/connector/wire", "tests/connector/sink", "tests/operations/doctor"),
}
WITHOUT_SPARK = "spark", "in_turn"  # markers of tests that take longer
CORES = min(5, os.cpu_count() or 1)
SPARKS_AT_ONCE = CORES + 1
AT_ONCE = CORES + 2  # one folder without Spark, in addition to the Sparks
MAX_REPEATS = 10  # failed tests that run again at most
TEST_SECONDS = 300
LEG_SECONDS = 1200
NO_TESTS = 5  # pytest's exit code if -m deselects all tests
INTERRUPTED = 130
_FILE_NAME = str.maketrans(" /", "--")
processor_time = ProcessorTime()


class Part(NamedTuple):
    """Tests of one pytest: a folder, some files of it, or some folders.

    name: "tests/connector/spark 1/2" for a part of a folder.
    """

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
    began_by_machine: float = field(default_factory=machine_seconds)
    seconds: float = 0.0
    repeat: Leg | None = None  # second run of the failed tests

    def __post_init__(self) -> None:
        (self.home / "tmp").mkdir(parents=True)
        environment = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        folders_of_leg = ["-o", f"cache_dir={self.home / 'cache'}", f"--basetemp={self.home / 't'}"]
        of_leg = ["-p", "tools.pytest_of_leg", f"--timeout={TEST_SECONDS}", f"--counts={self.home / 'counts'}"]
        options = [*of_leg, *folders_of_leg, *self.part.options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "pytest", *options, *self.part.paths],
                cwd=ROOT,
                env={**environment, "TMPDIR": str(self.home / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only this program interrupts it
            )

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def python(self) -> str:
        """Interpreter of the pytest."""
        return str(OF_CONNECT) if self.part.folder in IN_CONNECT and OF_CONNECT.exists() else sys.executable

    @property
    def log(self) -> Path:
        """File with the output of the pytest."""
        return self.home / "log"

    @property
    def code(self) -> int:
        """pytest's exit code; 0 if there is no test, or if all failed tests passed in the second run."""
        if self.repeat is not None and self.repeat.process.returncode == 0:
            return 0
        return 0 if self.process.returncode == NO_TESTS else self.process.returncode

    def output(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def has_ended(self) -> bool:
        """Whether the pytest has ended. Sets `seconds`."""
        if self.process.poll() is None:
            return False
        self.seconds = time.monotonic() - self.began
        return True

    def end_if_stuck(self) -> None:
        """End the pytest after LEG_SECONDS, with its servers and Sparks. It prints the stacks of its threads."""
        if machine_seconds() - self.began_by_machine > LEG_SECONDS:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def is_stuck(self) -> bool:
        """Whether it was ended because it did not end."""
        return self.process.returncode == -signal.SIGABRT

    def counts(self) -> tuple[int, Counter[str]]:
        """Return how many tests ran, and how many did not, by the leg that has them; nothing of one that was ended."""
        try:
            counted = json.loads((self.home / "counts").read_text())
        except FileNotFoundError:
            return 0, Counter()
        return counted["ran"], Counter(counted["not_run"])

    def failed(self) -> dict[str, bool]:
        """Return the tests that pytest --lf would run again."""
        try:
            failures: dict[str, bool] = json.loads((self.home / "cache" / "v" / "cache" / "lastfailed").read_text())
        except FileNotFoundError:
            return {}
        return failures


def folders() -> list[str]:
    """Return every folder with tests, in the order of their start. Of a house with rooms, each room or file."""
    paths = [path.relative_to(ROOT).parts for path in ROOT.glob("tests/*/**/test_*.py")]
    names = sorted({"/".join(path[: 3 if path[1] in WITH_ROOMS else 2]) for path in paths})
    return [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]


def parts() -> list[Part]:
    """Return every folder, or its parts, in the order of their start."""
    all_parts = list[Part]()
    for folder in [folder for folder in folders() if folder not in TOGETHER]:
        files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"{folder}/**/test_*.py"))
        count = PARTS.get(folder, 1)
        if count == 1:
            all_parts.append(Part(folder, folder, (folder,)))
        else:
            all_parts += [Part(f"{folder} {n + 1}/{count}", folder, tuple(files[n::count])) for n in range(count)]
    first = [part for part in all_parts if part.folder in FIRST]
    return [*first, Part(f"{len(TOGETHER)} folders", "tests", tuple(TOGETHER)), *all_parts[len(first) :]]


def daily_parts() -> list[Part]:
    """Return all parts with the tests of one day."""
    several = [Part(f"{paths[0]} +{len(paths) - 1}", paths[0], tuple(paths)) for paths in OF_ONE_DAY]
    others = [part for part in parts() if not any(part.folder in paths for paths in OF_ONE_DAY)]
    return [part._replace(options=IN_TURNS) for part in [*several, *others]]


def short_parts() -> list[Part]:
    """Return the selection for --short."""
    return [Part(name, name.split(" ")[0], paths) for name, paths in SHORT.items()]


def quick_parts() -> list[Part]:
    """Return the selection for --quick."""
    options = (*IN_TURNS, *(f"--without={marker}" for marker in WITHOUT_SPARK))
    return [Part(name, "tests", paths, options) for name, paths in QUICK.items()]


def run(home: Path, waiting: list[Part]) -> Generator[Leg, None, None]:
    """Run all parts. Yield each leg when it has ended."""
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
            for leg in running:
                leg.end_if_stuck()
            processor_time.look({leg.process.pid for leg in running})
            time.sleep(0.1)
    finally:
        with sigterm_without_effect():
            for leg in running:
                leg.process.send_signal(signal.SIGINT)
            for leg in running:
                try:
                    leg.process.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(leg.process.pid, signal.SIGKILL)
                    leg.process.wait()
                show(leg)


@contextlib.contextmanager
def sigterm_without_effect() -> Generator[None, None, None]:
    """Do nothing at SIGTERM within the block. Programs that are started later do not inherit this, unlike SIG_IGN."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_again(home: Path, legs: list[Leg]) -> None:
    """Run the failed tests once more, one folder after another, with nothing in parallel."""
    failed = [(leg, [*leg.failed()]) for leg in legs if leg.code and leg.failed()]
    if sum(len(tests) for _, tests in failed) > MAX_REPEATS:
        return
    stuck = [(leg, [*leg.part.paths]) for leg in legs if leg.is_stuck]
    for leg, tests in failed + stuck:
        part = leg.part._replace(name=f"{leg.name} again", paths=tuple(tests))
        (leg.repeat,) = run(home, [part])
        show(leg.repeat)


def show(leg: Leg) -> None:
    """Print the output of a leg."""
    print(f"\n{f' {leg.name} ':#^120}\n", *leg.output(), sep="\n", flush=True)


def remember(legs: list[Leg]) -> None:
    """Store the failed tests for `scripts/test --lf`."""
    cache = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({name: True for leg in legs for name in leg.failed()}))


def sum_up(legs: list[Leg]) -> None:
    """Print a line for each leg, and the failed tests."""
    print(f"\n{' all ':#^120}\n")
    for leg in legs:
        print(f"{leg.name:26} {leg.seconds:5.0f} s   {leg.output()[-1].strip('= ') if leg.output() else 'no output'}")
    lines = [line for leg in legs for line in leg.output() if line.startswith(LEFT_OUT)]
    if names := [name for line in lines for name in line.removeprefix(LEFT_OUT).split(", ")]:
        print(f"{LEFT_OUT}{len(names)} files and single tests, which the output of their folders names")
    if longest := [line for leg in legs for line in leg.output() if line.startswith(LONGEST)]:
        print(max(longest, key=lambda line: int(line.removeprefix(LONGEST).split()[0].replace(",", ""))))
    print(told_counts([leg.counts() for leg in legs]))
    if left := folders_without([leg.part for leg in legs]):
        print(f"of these folders no test ran: {', '.join(left)} (scripts/test)")
    for leg in legs:
        if leg.code or leg.repeat is not None:
            print(*[line for line in leg.output() if line.startswith(("FAILED ", "ERROR "))], sep="\n")
        if leg.repeat is not None:
            print(f"run again alone: {leg.repeat.output()[-1].strip('= ')}")


def folders_without(some: Iterable[Part]) -> list[str]:
    """Return the folders of which these parts run nothing."""
    there = {path for part in some for path in part.paths}
    return [one for one in folders() if not any(path == one or path.startswith(f"{one}/") for path in there)]


def told_counts(counts: Iterable[tuple[int, Counter[str]]]) -> str:
    """Return a line with how many tests ran, and which legs have the others."""
    ran, not_run = 0, Counter[str]()
    for of_one, others in counts:
        ran += of_one
        not_run += others
    others_told = [f"{count:,} {leg}" for leg, count in not_run.most_common()]
    told = f"ran {ran:,} of {ran + not_run.total():,} tests"
    return f"{told}; not run: {', '.join(others_told)} (scripts/test LEG)" if others_told else told


def select_parts(words: list[str]) -> list[Part]:
    """Return the parts that the command line selects."""
    if "--short" in words:
        return short_parts()
    if "--quick" in words:
        return quick_parts()
    if "--spark" in words:
        return [part for part in parts() if part.folder in ON_ANOTHER_SPARK]
    if "--both" in words:
        return parts()
    return daily_parts()


def main() -> int:
    """Run the tests. Return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    began = time.monotonic()
    processor_time.adopt()
    os.environ.setdefault("RSTREAM_SEED", str(first_seed()))  # one for all, also if the day ends
    home = Path(tempfile.mkdtemp(prefix="rs-"))  # short: a socket's path has at most about a hundred bytes
    legs: list[Leg] = []
    try:
        with contextlib.closing(run(home, select_parts(sys.argv[1:]))) as ended:
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
    result = "failed" if code else "passed"
    seconds = processor_time.seconds()
    print(f"{result} in {time.monotonic() - began:.0f} s, {AT_ONCE} at a time; processor time: {seconds:.0f} s")
    if code:
        print(f"their files are in {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return code


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
