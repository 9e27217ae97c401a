"""The Spark of these tests, and the recipes as modules."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.connector.spark.conftest import spark

__all__ = ["spark"]

# Tasks need what recipes need, too, whatever Python scripts/test has chosen for the others' tasks.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

HERE = Path(__file__).parent
RECIPES = HERE.parents[2] / "examples" / "recipes"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What recipes need is in an environment of its own: pandas above all, as for Spark Connect."""
    missing = [
        name for name in ("deltalake", "fastavro", "google.protobuf", "pandas", "pyiceberg") if not is_there(name)
    ]
    if missing:
        reason = f"{', '.join(missing)} missing: scripts/test --recipes brings them"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def recipe_of(name: str) -> ModuleType:
    """The program as a module: what it does when it is run is not done."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def recipe() -> Callable[[str], ModuleType]:
    return recipe_of
