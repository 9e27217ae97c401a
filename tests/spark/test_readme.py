"""The first program of README.md, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_program_prints_what_readme_says(tmp_path: Path) -> None:
    program, output = re.findall(r"```(?:python|text)\n(.*?)```", README, re.DOTALL)[:2]
    assert len([line for line in program.splitlines() if line]) == 6
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("RSTREAM_URL", None)
    command = [sys.executable, "-c", program]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert output in ran.stdout
