"""Set up a session so that the Python processes of Spark import the installed PySpark (startup/sitecustomize.py)."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_streams.connector.spark.connect import is_of_connect
from spark_streams.connector.spark.startup.sitecustomize import add_to_path


def prefer_installed_pyspark(spark: SparkSession) -> None:
    """Add the folder to the path of Python processes on this machine: not on a cluster, not over Spark Connect.

    Processes for functions that were created earlier are not affected.
    """
    if not is_of_connect(spark) and str(spark.sparkContext.master).startswith("local"):
        add_to_path(spark.sparkContext.environment)
