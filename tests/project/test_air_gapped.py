"""docs/guide/review.md: the package is installed without an index, and so is an extra later."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project.test_build import NOT_OURS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guide" / "review.md").read_text(encoding="utf-8")
# Without them pip asks no index and looks into no folder that the machine's administrator has set.
WITHOUT_SETTINGS = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
WITHOUT_SETTINGS |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-ec", command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=400)


@pytest.mark.network
def test_the_recipe_of_the_page_installs_without_an_index(tmp_path: Path) -> None:
    """Its own commands. Then the command that a message names for an extra, from a folder without this package."""
    makes, installs = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    shutil.copytree(ROOT, tmp_path / "spark-streams", symlinks=True, ignore=NOT_OURS)
    pinned = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    ended = run(f"{makes}\npip wheel --wheel-dir more './spark-streams[console]'", tmp_path, pinned)
    assert ended.returncode == 0, ended.stderr
    names = {path.name.split("-")[0] for path in (tmp_path / "wheels").iterdir()}
    assert {"spark_streams", "pyarrow", "numpy", "redis", "hiredis"} <= names
    assert "pyspark" not in names
    (tmp_path / "spark-streams").rename(tmp_path / "gone")

    apart = tmp_path / "apart"
    apart.mkdir()
    (tmp_path / "wheels").rename(apart / "wheels")
    ended = run(installs, apart, WITHOUT_SETTINGS)
    assert ended.returncode == 0, ended.stderr
    said = run("rstream/bin/rstream console --port 0", apart, WITHOUT_SETTINGS)
    [command] = re.findall(r"pip install 'spark-streams\[console\]'", said.stderr + said.stdout)

    shutil.rmtree(apart / "wheels")
    without = {**WITHOUT_SETTINGS, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "more")}
    ended = run(f"rstream/bin/{command}", apart, without)
    assert ended.returncode == 0, ended.stderr
    assert "starlette" in ended.stdout
    ended = run("rstream/bin/python -c 'import spark_streams.operations.console.web_server'", apart, without)
    assert ended.returncode == 0, ended.stderr
