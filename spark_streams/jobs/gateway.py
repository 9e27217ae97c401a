"""Start of the JVM of a job that runs in this Python. PySpark would pass the settings as arguments (`ps`)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from spark_streams.jobs.properties_file import write_properties

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM that the next session uses with these settings. Do nothing if this process has one."""
    if SparkContext._gateway is not None:
        return
    before = os.environ.get(_ARGUMENTS)
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
