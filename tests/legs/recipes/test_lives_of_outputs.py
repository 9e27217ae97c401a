"""Random lives of outputs (tools.outputs): each entry is in its table once, whatever has struck the runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="it needs Linux and a C compiler"),
]

ROOT = Path(__file__).resolve().parents[3]
SEED, RUNS = 1, 6  # two lives of each format


def test_lives_have_no_fault() -> None:
    """To see one: python -m tools.outputs --story SEED."""
    words = [sys.executable, "-m", "tools.outputs", "--seed", str(SEED), "--runs", str(RUNS)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout[-3000:], done.stderr[-3000:])
    assert done.returncode == 0
    assert f"{RUNS} lives, 0 with faults" in done.stdout
