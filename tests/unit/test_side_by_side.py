"""scripts/test runs all tests, whichever folders there are."""

from __future__ import annotations

from tests.side_by_side import FIRST, ROOT, folders


def test_no_test_is_left_out() -> None:
    tests = [path.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py")]
    assert all(any(path.is_relative_to(folder) for folder in folders()) for path in tests)
    assert len(folders()) == len(set(folders()))
    assert set(FIRST) <= set(folders())
