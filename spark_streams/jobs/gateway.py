"""Start of the JVM of a job that runs in this Python. PySpark would pass the settings as arguments (`ps`)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.properties_file import write_properties

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_OPTION = "--properties-file"  # spark-submit reads the last one only


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM that the next session uses with these settings. Do nothing if this process has one.

    Raises ConfigError if PYSPARK_SUBMIT_ARGS names a file of settings of its own.
    """
    if SparkContext._gateway is not None:
        return
    before = os.environ.get(_ARGUMENTS)
    if any(word.partition("=")[0] == _OPTION for word in shlex.split(before or "")):
        raise ConfigError(
            f"{_ARGUMENTS} has {_OPTION}, and Spark reads only one such file: move its settings into [spark] of the "
            "job's TOML file, or into spark-defaults.conf"
        )
    file = write_properties(settings)
    os.environ[_ARGUMENTS] = " ".join([*file.arguments, before or "pyspark-shell"])
    try:
        # It returns when the JVM has read the file.
        gateway = launch_gateway(popen_kwargs={"pass_fds": (file.descriptor,)})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    finally:
        os.close(file.descriptor)
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before
