"""The query of a run: `python -m spark_streams.operations.verify.program FOLDER`. The process is killed at any moment.

FOLDER has `plan.json` (RunningQuery), and receives `versions.json`, `up`, `checkpoint`, and `error` if the query fails.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_streams
from spark_streams.connector.errors import find_in_text
from spark_streams.connector.running.ending import Stop
from spark_streams.connector.running.run import run_until_drained
from spark_streams.operations.verify.running_query import SCHEMA


def main(folder: Path) -> None:
    """Run the query until its end, or until the process that started it has ended."""
    plan = json.loads((folder / "plan.json").read_text())
    spark = spark_streams.register(SparkSession.builder.config(map=plan["conf"]).getOrCreate())
    versions = {"Spark": spark.version, "Python": platform.python_version(), "master": spark.sparkContext.master}
    versions["Java"] = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
    (folder / "versions.json").write_text(json.dumps(versions))
    try:
        rows = spark.readStream.format("rstream").schema(SCHEMA).options(**plan["source"]).load()
        columns = rows.select("p", "n", F.col("_stream").alias("source"), F.col("_id").alias("entry"))
        writer = columns.writeStream.format("rstream").options(**plan["sink"])
        writer = writer.option("checkpointLocation", (folder / "checkpoint").as_uri())
        if plan["drains"]:
            writer = writer.trigger(availableNow=True)
            run_until_drained(writer.start(), writer.start, Stop())
            return
        query = writer.start()
        (folder / "up").touch()
        while not query.awaitTermination(1):
            os.kill(plan["parent"], 0)  # an error if that process has ended
    except Exception as error:
        (folder / "error").write_text(find_in_text(str(error)) or str(error)[:2_000])
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
