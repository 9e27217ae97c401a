"""The folders of `tests` are those of the package, and names exist once. The numbers may only fall."""

from __future__ import annotations

from pathlib import Path

from tools.figures import HOUSES, PACKAGE, ROOT, modules_of, names_of_classes, names_of_files

TESTS = ROOT / "tests"
# Whole queries in Spark have no one module: tests/connector/spark. Their jobs: its folder `jobs`.
IN_SPARK = Path("connector/spark")
WITHOUT_A_MODULE = 144  # test files whose name is not that of a module in their folder
CLASSES_TWICE = 52  # aim: 10
FILES_TWICE = 71  # aim: 25


def files() -> list[Path]:
    """The test files of the houses, below `tests`."""
    return sorted(path.relative_to(TESTS) for house in HOUSES for path in (TESTS / house).rglob("test_*.py"))


def test_each_folder_of_tests_is_one_of_the_package() -> None:
    folders = {path.parent for path in files() if not path.is_relative_to(IN_SPARK)}
    assert not {str(folder) for folder in folders if not (ROOT / PACKAGE / folder).is_dir()}


def test_a_test_file_has_the_name_of_its_module() -> None:
    """Or that of a folder in its folder. The others name what several modules do together."""

    def names_a_module(path: Path) -> bool:
        module = ROOT / PACKAGE / path.parent / path.stem.removeprefix("test_")
        return module.with_suffix(".py").exists() or module.is_dir()

    without = [str(path) for path in files() if not path.is_relative_to(IN_SPARK) and not names_a_module(path)]
    assert len(without) <= WITHOUT_A_MODULE, without


def test_a_class_name_exists_once_in_the_package() -> None:
    twice = names_of_classes(modules_of())
    assert len(twice) <= CLASSES_TWICE, twice


def test_a_file_name_exists_once_in_the_package() -> None:
    twice = names_of_files()
    assert len(twice) <= FILES_TWICE, twice
