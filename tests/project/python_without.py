"""Programs in a Python that lacks some packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

# One process, because it takes a while to start. Each line prints "==", its exit code and itself.
COMMANDS = """
import sys
from spark_streams.cli import main
for line in sys.stdin.read().splitlines():
    try:
        main(line.split(), prog_name="rstream")
    except SystemExit as ended:
        print("==", ended.code, line)
"""


def run_without(packages: Sequence[str], program: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in which these packages cannot be imported. given: its standard input."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({list(packages)!r}))\n"
    command = [sys.executable, "-c", blocked + program]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)
