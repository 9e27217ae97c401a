"""Set up a session so that the Python processes of Spark import the installed PySpark (startup/sitecustomize.py)."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from spark_streams.spark.connect import is_of_connect
from spark_streams.spark.startup.sitecustomize import FOLDER


def prefer_installed_pyspark(spark: SparkSession) -> None:
    """Add the folder to the path of Python processes on this machine: not on a cluster, not over Spark Connect.

    Processes for functions that were created earlier are not affected.
    """
    if is_of_connect(spark) or not str(spark.sparkContext.master).startswith("local"):
        return
    environment = spark.sparkContext.environment
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    if FOLDER not in folders:
        environment["PYTHONPATH"] = os.pathsep.join([*filter(None, folders), FOLDER])
