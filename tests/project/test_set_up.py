"""`set_up` of scripts/_setup.sh, with downloads and pip replaced."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SET_UP = Path(__file__).resolve().parents[2] / "scripts" / "_setup.sh"
PROGRAM = """
set -euo pipefail
. scripts/_setup.sh
apt-get() { :; }
dpkg-deb() { :; }
can_apt() { false; }
have_prometheus() { [ -e "$venv/bin/promtool" ]; }
fetch_prometheus() { echo fetched >>fetched; mkdir -p "$venv/bin"; touch "$venv/bin/promtool"; }
install_packages() { "$python" -m venv --without-pip "$venv"; printf '#!%s\n' "$venv/bin/python" >"$venv/bin/pip"; }
set_up dev prometheus
have_prometheus
"""


@pytest.mark.parametrize("left", ["nothing", "half an environment"])
def test_what_is_kept_in_venv_is_fetched_once(tmp_path: Path, left: str) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SET_UP, tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    venv = tmp_path / ".venv"
    if left != "nothing":
        (venv / "bin").mkdir(parents=True)
        for name in (".setup.making", "bin/promtool"):
            (venv / name).touch()
    for _ in range(2):
        ran = subprocess.run(["bash", "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert (tmp_path / "fetched").read_text() == "fetched\n"
    assert not (venv / ".setup.making").exists()
