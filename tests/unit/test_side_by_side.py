"""scripts/test runs all tests, whichever folders there are."""

from __future__ import annotations

from tests.side_by_side import FIRST, ON_ANOTHER_SPARK, PARTS, ROOT, folders, parts, short_parts, wanted


def test_no_test_is_left_out() -> None:
    tests = [path.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py")]
    assert all(any(path.is_relative_to(folder) for folder in folders()) for path in tests)
    assert len(folders()) == len(set(folders()))
    assert set(FIRST) <= set(folders())


def test_the_parts_of_a_folder_are_the_folder() -> None:
    for folder, count in PARTS.items():
        shares = [part.paths for part in parts() if part.folder == folder]
        files = [path for share in shares for path in share]
        assert sorted(files) == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"{folder}/**/test_*.py"))
        assert (len(shares), len(set(files))) == (count, len(files))
    assert [part.folder for part in parts() if part.folder not in PARTS] == [
        one for one in folders() if one not in PARTS
    ]


def test_what_runs_on_another_spark_is_there() -> None:
    assert {part.folder for part in wanted(["--spark"])} == set(ON_ANOTHER_SPARK)
    assert wanted([]) == parts()
    assert all((ROOT / path).exists() for part in short_parts() for path in part.paths)
    assert {part.folder for part in short_parts()} <= set(ON_ANOTHER_SPARK)
