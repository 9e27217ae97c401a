"""For pytest, on one server: without the legs on the bundled engine, which is the same whatever server is beside it."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests on the bundled engine."""
    engine = [item for item in items if _is_on_the_engine(item)]
    config.hook.pytest_deselected(items=engine)
    items[:] = [item for item in items if not _is_on_the_engine(item)]


def _is_on_the_engine(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "engine" in (value for value in callspec.params.values() if isinstance(value, str))
