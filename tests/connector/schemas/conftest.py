"""A schema registry, and the Spark of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connector.schemas.registry_server import RegistryServer
from tests.connector.spark.conftest import spark

__all__ = ["spark"]


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        yield server
