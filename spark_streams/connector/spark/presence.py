"""Check that this Python has pyspark, and that it has what Python data sources need. The package does not require
pyspark, because a cluster provides its own Spark."""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from importlib.util import find_spec

from spark_streams.base.extras import command_for, lacks
from spark_streams.connector.errors import UnsupportedError

JAVA_REMEDY = "install a JDK 17 or newer, or set JAVA_HOME"
_SOURCE = ("DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition")
_SINK = ("DataSourceArrowWriter", "DataSourceStreamWriter", "WriterCommitMessage")


def remedy() -> str:
    """Return what to do if this Python has no Spark."""
    return f"{command_for('spark')}, or run this with a Spark's own Python (spark-submit)"


def check_for_spark(name: str) -> None:
    """Raise UnsupportedError if there is no pyspark with Python sources. name: of the function that needs it."""
    if find_spec("pyspark") is None:
        raise UnsupportedError(f"{name} needs Spark, and this Python has no pyspark: {remedy()}")
    _check_for_classes(name, _SOURCE)
    for package in ("pyarrow", "numpy"):
        if find_spec(package) is None:
            raise UnsupportedError(f"{lacks(name, package)}, here and where tasks run")


def has_java() -> bool:
    """Return whether Spark will find a Java."""
    return bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None


def check_for_java(name: str) -> None:
    """Raise UnsupportedError if a new session would start a JVM and there is no Java. name: as above."""
    elsewhere = ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT")  # a server of Spark Connect; the JVM of spark-submit
    if not has_java() and not any(os.environ.get(one) for one in elsewhere):
        raise UnsupportedError(f"{name} starts Spark, and there is no Java: {JAVA_REMEDY}")


def check_for_sink() -> None:
    """Raise UnsupportedError if this pyspark has no Python sinks."""
    _check_for_classes("a sink with format('rstream')", _SINK)


def _check_for_classes(name: str, classes: tuple[str, ...]) -> None:
    try:
        module: object = import_module("pyspark.sql.datasource")
    except ModuleNotFoundError:
        module = None
    missing = [one for one in classes if not hasattr(module, one)]
    if missing:
        version = getattr(import_module("pyspark"), "__version__", "of an unknown version")
        raise UnsupportedError(
            f"{name} needs Spark 4.0 or newer, and this is PySpark {version}: its module pyspark.sql.datasource has "
            f"no {missing[0]}"
        )
