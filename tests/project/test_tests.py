"""The folders of `tests` are those of the package, and names exist once. The numbers may only fall."""

from __future__ import annotations

from pathlib import Path

from tools.figures import HOUSES, PACKAGE, ROOT, modules_of, names_of_classes, names_of_files

TESTS = ROOT / "tests"
# Whole queries in Spark have no one module: tests/connector/spark. Their jobs: its folder `jobs`.
IN_SPARK = Path("connector/spark")
WITHOUT_A_MODULE = 103  # test files whose name is not that of a module in their folder
CLASSES_TWICE = 3
FILES_TWICE = 11


def files() -> list[Path]:
    """The test files of the houses, below `tests`."""
    return sorted(path.relative_to(TESTS) for house in HOUSES for path in (TESTS / house).rglob("test_*.py"))


def test_each_folder_of_tests_is_one_of_the_package() -> None:
    folders = {path.parent for path in files() if not path.is_relative_to(IN_SPARK)}
    assert not {str(folder) for folder in folders if not (ROOT / PACKAGE / folder).is_dir()}


def test_a_test_file_has_the_name_of_its_module() -> None:
    """Or that of a folder in its folder, alone or before a subject: test_streams_lease. The others name what several
    modules do together."""

    def names_a_module(path: Path) -> bool:
        words = path.stem.split("_")[1:]
        names = [ROOT / PACKAGE / path.parent / "_".join(words[:count]) for count in range(1, len(words) + 1)]
        return any(name.with_suffix(".py").exists() or name.is_dir() for name in names)

    without = [str(path) for path in files() if not path.is_relative_to(IN_SPARK) and not names_a_module(path)]
    assert len(without) <= WITHOUT_A_MODULE, without


def test_a_class_name_exists_once_in_the_package() -> None:
    twice = names_of_classes(modules_of())
    assert len(twice) <= CLASSES_TWICE, twice


def test_a_file_name_exists_once_in_the_package() -> None:
    twice = names_of_files()
    assert len(twice) <= FILES_TWICE, twice
