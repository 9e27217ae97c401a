"""Spark's daemon of Python processes, which imports what its processes need before it forks them.

Sessions of tests that kill many of these processes name it in spark.python.daemon.module. Spark's own daemon forks a
process that then imports Arrow and this package, which takes half a second of processor time.
"""

from __future__ import annotations

import importlib
import sys

from pyspark.daemon import manager

# Spark runs a daemon for each of these modules, named by its first argument. Other daemons fork one process.
PRELOADED = {
    "pyspark.worker": [
        "pyspark.worker",
        "spark_streams.connector.source.stream_reader",
        "spark_streams.connector.sink.writers",
    ],
    "pyspark.sql.worker.plan_data_source_read": ["spark_streams.connector.source.stream_reader"],
    "pyspark.sql.worker.write_into_data_source": ["spark_streams.connector.sink.writers"],
}

if __name__ == "__main__":
    for name in PRELOADED.get(sys.argv[1], []):
        importlib.import_module(name)
    manager()
