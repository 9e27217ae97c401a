"""For pytest, on one server: without the legs on the bundled engine, which is the same whatever stands beside it; and a
test that meets the refusal of a server by name has been refused, which is neither passed nor failed.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

REFUSED = "refused by name"
_BY_NAME = "does not count the entries that a stream was given"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects them."""
    engine = [item for item in items if _is_on_the_engine(item)]
    config.hook.pytest_deselected(items=engine)
    items[:] = [item for item in items if not _is_on_the_engine(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skipped, and why."""
    report = yield
    if report.failed and _BY_NAME in str(report.longrepr):
        path, line, _ = item.location
        report.outcome, report.longrepr = "skipped", (path, line or 0, REFUSED)
    return report


def _is_on_the_engine(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "engine" in (value for value in callspec.params.values() if isinstance(value, str))
