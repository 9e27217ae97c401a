"""One Spark Connect server and one session of it for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.connect.session import SparkSession

from tests.connect.connect_server import ConnectServer


@pytest.fixture(scope="package")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture
def spark(connect: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Functions of pyspark.sql.functions make columns of Spark Connect meanwhile, and not in tests of other folders."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return connect.session()
