"""Streams `s` of some servers into their streams `out`, as a user programs it. Run as `spark-submit carry.py FILE`.

FILE holds JSON: urls; folder (checkpoints; `done` tells what tasks ran with, at the end); trigger; batch: the most
entries in one; and options of the source.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import spark_streams


def whereabouts(_: int) -> tuple[str, str]:
    """In a task: which Python runs it, and where that has the package from."""
    import spark_streams as found

    return sys.prefix, str(Path(found.__file__).parent)


asked = json.loads(Path(sys.argv[1]).read_text())
folder = Path(asked["folder"])
spark = SparkSession.builder.getOrCreate()
spark_streams.register(spark)
for number, url in enumerate(asked["urls"]):
    source = (
        spark.readStream.format("rstream")
        .schema("p STRING, n LONG")
        .option("url", url)
        .option("streams", "s")
        .option("group", "g")
        .option("startingOffsets", "earliest")
        .option("maxEntriesPerTrigger", asked["batch"])
        .options(**asked["options"])
        .load()
    )
    spark_streams.run(
        source.writeStream.format("rstream")
        .option("url", url)
        .option("stream", "out")
        .option("chunkSize", 250)
        .option("checkpointLocation", str(folder / f"checkpoint{number}"))
        .trigger(**asked["trigger"])
        .queryName(f"carry{number}")
    )
tasks = spark.sparkContext.parallelize(range(8), 8).map(whereabouts).distinct().collect()
(folder / "done").write_text(json.dumps(tasks))
