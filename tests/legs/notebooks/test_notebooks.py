"""Each notebook runs from top to bottom, and the outputs that are kept in it are those of the present code."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.legs.notebooks.execution import NOTEBOOKS, comparable, executed, outputs

pytestmark = pytest.mark.in_turn

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
@pytest.mark.parametrize("path", [PATHS[0], pytest.param(PATHS[1], marks=pytest.mark.long)], ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_is_kept_with(path: Path, tmp_path: Path) -> None:
    """If only an output has changed: `python -m tests.legs.notebooks.execution` keeps the new one."""
    kept = outputs(nbformat.read(path, as_version=4))
    assert outputs(executed(path, tmp_path)) == kept


@pytest.mark.parametrize(
    ("kept", "now"),
    [
        ("lag 12 behind 36 ms", "lag 12 behind 1 m 10 s"),
        ("dead 1 909 ms ago  3.6 s ago", "dead 1 3.6 s ago  12.1 s ago"),
        ("1795390293074-0 |  ann", "1795390293999-12 | ann"),
        ("da110829-2a2c-4e2c-be64-7d87ed96e4fa", "1f967005-0be2-48a0-9fb0-5fbf80f5be5a"),
    ],
)
def test_ids_ages_and_numbers_do_not_count_in_a_comparison(kept: str, now: str) -> None:
    assert comparable(kept) == comparable(now)


def test_words_count_in_a_comparison() -> None:
    assert comparable("billing running 3") != comparable("billing stopped 3")
