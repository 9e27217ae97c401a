"""One Spark Connect server and one session of it for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.legs.connect.connect_server import ConnectServer

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Spark Connect needs is in an environment of its own: pandas above all, which Arrow would import in every
    Python process of every other test."""
    if find_spec("grpc") is None or find_spec("pandas") is None:
        skip = pytest.mark.skip(reason="needs spark-streams[connect]: scripts/test --connect")
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(skip)


@pytest.fixture(scope="package")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture
def spark(connect: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Functions of pyspark.sql.functions make columns of Spark Connect meanwhile, and not in tests of other folders."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return connect.session()
