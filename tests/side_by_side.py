"""All tests, some folders at a time, each in a pytest of its own: `python -m tests.side_by_side`, as scripts/test does.

Most of them wait, for Spark above all. A pytest has servers, a Spark and a temporary folder of its own, so that nothing
is shared. What it says is shown whole when it has ended; the exit code is that of the first folder, in the order in
which they began, whose tests did not all pass. PYTEST_ADDOPTS adds to the options of each.
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

ROOT = Path(__file__).resolve().parents[1]
# What takes longest begins first; a folder that is not named here is run, too.
# A Spark wants a core, or its Python processes come too late for it: in ten seconds.
SPARK = ["tests/faults", "tests/spark", "tests/jobs", "tests/sink", "tests/connect"]
FIRST = [*SPARK, "tests/source", "tests/engine"]
CORES = min(5, os.cpu_count() or 1)
AT_ONCE = CORES + 1
NO_TESTS = 5  # pytest's exit code where none is left after -m
INTERRUPTED = 130


@dataclass
class Leg:
    """The pytest of one folder."""

    name: str
    home: Path
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        (self.home / "tmp").mkdir(parents=True)
        environment = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        own = ["-o", f"cache_dir={self.home / 'cache'}", f"--basetemp={self.home / 't'}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *own, self.name],
                cwd=ROOT,
                env={**environment, "TMPDIR": str(self.home / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it is interrupted once, by us
            )

    @property
    def log(self) -> Path:
        """What it says."""
        return self.home / "log"

    @property
    def code(self) -> int:
        """pytest's exit code, 0 where there is no test."""
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


def run(home: Path) -> Generator[Leg, None, None]:
    """All legs, each when it has ended."""
    waiting, running = folders(), list[Leg]()
    try:
        while waiting or running:
            for name in list(waiting):
                sparks = sum(leg.name in SPARK for leg in running)
                if len(running) < AT_ONCE and (sparks < CORES or name not in SPARK):
                    waiting.remove(name)
                    running.append(Leg(name, home / name.rpartition("/")[2]))
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
        print(f"{leg.name:16} {leg.seconds:5.0f} s   {leg.said()[-1].strip('= ') if leg.said() else 'said nothing'}")
    for leg in legs:
        if leg.code:
            print(*[line for line in leg.said() if line.startswith(("FAILED ", "ERROR "))], sep="\n")


def main() -> int:
    """Exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    began = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="rs-"))  # short: a socket's path has a hundred bytes at most
    legs: list[Leg] = []
    try:
        with contextlib.closing(run(home)) as ended:
            for leg in ended:
                show(leg)
                legs.append(leg)
    except KeyboardInterrupt:
        print("interrupted")
        shutil.rmtree(home, ignore_errors=True)
        return INTERRUPTED
    legs.sort(key=lambda leg: leg.began)
    remember(legs)
    sum_up(legs)
    code = next((leg.code for leg in legs if leg.code), 0)
    print(f"{'failed' if code else 'passed'} in {time.monotonic() - began:.0f} s, {AT_ONCE} folders at a time")
    if code:
        print(f"what they left is in {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return code


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
