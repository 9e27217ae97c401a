"""One Spark session for all tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

LOG4J = Path(__file__).resolve().parents[3] / "spark_streams" / "jobs" / "conf" / "log4j2.properties"
# A query lives for seconds: compiling it thoroughly costs more than it gives.
JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={LOG4J}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # An idle query asks its source every 10 ms otherwise, which others on the machine pay for.
        .config("spark.sql.streaming.pollingDelay", "100ms")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.python.daemon.module", "tools.python_daemon")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .getOrCreate()
    )
    yield session
    session.stop()
