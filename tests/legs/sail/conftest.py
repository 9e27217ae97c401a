"""One Sail server and one session of it for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sail has an environment of its own: it takes no PySpark above 4.2."""
    if find_spec("pysail") is None:
        skip = pytest.mark.skip(reason="needs Sail: scripts/test --sail")
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(skip)


@pytest.fixture(scope="package")
def sail() -> Iterator[SparkSession]:
    """A session, without the format."""
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
    yield session
    session.stop()
    server.stop()


@pytest.fixture
def spark(sail: SparkSession) -> SparkSession:
    """The session, with the format."""
    import spark_streams

    return spark_streams.register(sail)
