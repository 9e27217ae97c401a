"""The processor time that scripts/test prints has all processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.side_by_side import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say whose processes have ended")

BUSY = "import time\nwhile time.process_time() < 0.5: pass\n"
# Prints the seconds that all processes of a program need, when the last of them has ended.
COUNT = """
import os, subprocess, sys, time
from tools.processor_time import ProcessorTime
used = ProcessorTime()
used.adopt()
own = time.process_time()
program = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
while True:
    program.poll()
    used.look({program.pid})
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        break
    time.sleep(0.02)
print(used.seconds() - (time.process_time() - own))
"""


def counted(program: str) -> float:
    command = [sys.executable, "-c", COUNT, program]
    return float(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def test_a_program_that_is_waited_for() -> None:
    assert 0.45 < counted(BUSY) < 0.9


def test_a_program_whose_parent_has_ended() -> None:
    """As the JVM of a Spark session, which ends after the Python program that has started it."""
    program = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {BUSY!r}])\n"
    assert 0.45 < counted(program) < 0.9


def test_a_program_whose_parent_ignores_its_end() -> None:
    """As Spark's Python processes, whose daemon ignores it. The time since the last look is missing."""
    busy = BUSY.replace("0.5", "1.5")
    program = (
        "import signal, subprocess, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"subprocess.Popen([sys.executable, '-c', {busy!r}]).wait()\n"
    )
    assert 0.7 <= counted(program) < 1.9
