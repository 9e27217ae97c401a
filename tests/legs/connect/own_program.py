"""A client of Spark Connect as users write one: `python own_program.py CONNECT FOLDER SOURCE SINK…`, urls each.

A function of foreachBatch writes what entries of stream `in` there are to stream `once` of each sink, under a name,
and to `again` of the first one, without; then it waits for a file in FOLDER.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy

import spark_streams
from spark_streams.connector.errors import InvalidOptionError

connect, folder, source, *sinks = sys.argv[1:]
checkpoint = f"{folder}/checkpoint"
spark = SparkSession.builder.remote(connect).getOrCreate()
spark.client.set_retry_policies([DefaultPolicy(max_retries=2)])  # that of Spark's own goes on for ten minutes


def write(rows: DataFrame, number: int) -> None:
    once = spark_streams.transaction("once", rows, number, checkpoint)
    for url, stream, options in (*((url, "once", once) for url in sinks), (sinks[0], "again", {})):
        to = rows.repartition(2).write.format("rstream").mode("append")
        to.options(**options, url=url, stream=stream).save()
    try:
        spark_streams.transaction("once", rows, number, f"{folder}/other")
    except InvalidOptionError as error:
        (Path(folder) / "other").write_text(str(error))
    (Path(folder) / f"begun{number}").touch()
    while not (Path(folder) / f"go{number}").exists():
        time.sleep(0.05)


entries = spark.readStream.format("rstream").schema("n INT")
entries = entries.options(url=source, streams="in", group="g", startingOffsets="earliest")
print("ready", file=sys.stderr, flush=True)
spark_streams.run(entries.load().writeStream.foreachBatch(write).option("checkpointLocation", checkpoint))
print("behind run", file=sys.stderr, flush=True)
