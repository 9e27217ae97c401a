"""Each notebook runs from top to bottom, and the outputs that are kept in it are those of the present code."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.notebooks.execution import NOTEBOOKS, executed, outputs

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.stem for path in PATHS] == ["first_hour", "replay_and_dead_letters"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_has_outputs_and_nothing_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|work|Users|tmp|var)/|\b(?:\d+\.){3}\d+\b", text)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert any(outputs(notebook))
    assert not [one for cell in notebook.cells for one in cell.get("outputs", []) if one.output_type == "error"]


@pytest.mark.spark
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_is_kept_with(path: Path, tmp_path: Path) -> None:
    """If only an output has changed: `python -m tests.notebooks.execution` keeps the new one."""
    kept = outputs(nbformat.read(path, as_version=4))
    assert outputs(executed(path, tmp_path)) == kept
