"""Run small queries and jobs, so that Spark's JVM loads their classes: `python -m tools.warm_up`.

scripts/_setup.sh lets the JVM write these classes to an archive (share_classes). The stream is in a separate engine.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def _count(rows: DataFrame, _number: int) -> None:
    rows.count()


def main() -> None:
    """Use tables and files, Python sources and sinks, and streams with a checkpoint and with state."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        os.environ["XDG_RUNTIME_DIR"] = home
        options = {"url": f"embedded://{home}/engine?idle=20"}
        rows = spark.range(1000).selectExpr("id", "id % 7 AS key", "CAST(id AS STRING) AS text", "now() AS time")
        rows.write.format("rstream").mode("append").options(**options, stream="s").save()
        spark.read.format("rstream").schema("id INT").options(**options, streams="s").load().groupBy(
            "id"
        ).count().count()
        source = spark.readStream.format("rstream").schema("id LONG, key INT, text STRING, time TIMESTAMP")
        entries = source.options(**options, streams="s", group="g", startingOffsets="earliest").load()
        files = entries.writeStream.format("parquet").option("path", f"{home}/entries")
        counts = entries.groupBy("key").count().writeStream.format("noop").outputMode("complete")
        batches = entries.writeStream.foreachBatch(_count)
        for name, writer in {"files": files, "counts": counts, "each": batches}.items():
            query = writer.option("checkpointLocation", f"{home}/{name}.checkpoint")
            query.trigger(availableNow=True).start().awaitTermination()
        spark.read.parquet(f"{home}/entries").write.csv(f"{home}/csv")
        spark.read.csv(f"{home}/csv").write.json(f"{home}/json")
        print(f"{spark.read.json(str(Path(home) / 'json')).count()} rows were written and read")
        spark.stop()


if __name__ == "__main__":
    main()
