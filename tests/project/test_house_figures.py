"""`scripts/check --figures`: what is counted in the text of the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.figures import HOUSES, ROOT, Module, arrows, ceilings, figures, floors, modules_of, names_of_classes

FILES = {
    "__init__": "from spark_streams.upper.door import Door\n",
    "base/__init__": "",
    "base/ids": '"""IDs."""\n\nimport re\n\n\nclass Id:\n    pass\n',
    "upper/__init__": "",
    "upper/door": "from spark_streams.base.ids import (\n    Id,\n)\nfrom spark_streams.base import ids\nDoor = Id\n",
    "upper/other": "class Id:\n    def f(self):\n        import spark_streams.upper.door\n",
}


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, Module]:
    for name, text in FILES.items():
        (tmp_path / "spark_streams" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "spark_streams" / f"{name}.py").write_text(text)
    return modules_of(tmp_path)


def test_rooms_import_each_other(modules: dict[str, Module]) -> None:
    assert arrows(modules) == {("upper", "base")}
    assert set(modules["upper.door"].imported(modules)) == {"base.ids"}
    assert set(modules["upper.other"].imported(modules)) == {"upper.door"}


def test_lines_before_the_first_definition_and_of_imports(modules: dict[str, Module]) -> None:
    assert (modules["base.ids"].head, modules["base.ids"].import_lines) == (5, 1)
    assert (modules["upper.door"].head, modules["upper.door"].import_lines) == (4, 4)
    assert (modules["upper.other"].head, modules["upper.other"].import_lines) == (0, 1)


def test_class_names_that_exist_twice(modules: dict[str, Module]) -> None:
    assert names_of_classes(modules) == ["Id"]


@pytest.mark.parametrize(
    ("pairs", "count"),
    [
        (set(), 0),
        ({("b", "a")}, 2),
        ({("c", "b"), ("b", "a"), ("c", "a")}, 3),
        ({("b", "a"), ("a", "b"), ("c", "a")}, 1),
    ],
)
def test_floors(pairs: set[tuple[str, str]], count: int) -> None:
    """A circle has no order."""
    assert floors(pairs) == count


@pytest.mark.in_turn
def test_the_command_prints_each_figure_of_this_house() -> None:
    printed = subprocess.check_output([ROOT / "scripts" / "check", "--figures"], text=True)
    assert ceilings().keys() == set(HOUSES)
    for name, value, aim in figures():
        assert [name, value, aim] in [line.rsplit(maxsplit=2) for line in printed.splitlines()]
