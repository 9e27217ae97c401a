"""docs/guide/monitoring.md: the lineage of a query, in a file."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import spark_streams

url = os.environ["RSTREAM_URL"]
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark_streams.register(spark)
spark.sql("SELECT 7 AS amount").write.format("rstream").mode("append").options(url=url, stream="orders").save()
source = spark.readStream.format("rstream").schema("amount INT")
orders = source.options(url=url, streams="orders", group="billing", startingOffsets="earliest").load()
writer = orders.writeStream.format("rstream").options(url=url, stream="billed").trigger(availableNow=True)
with tempfile.TemporaryDirectory() as folder:
    with spark_streams.watch(spark, url, log=None, lineage=f"{folder}/lineage"):
        spark_streams.run(writer.option("checkpointLocation", f"{folder}/checkpoint"))
    events = [json.loads(line) for line in Path(f"{folder}/lineage").read_text().splitlines()]
assert [one["name"] for one in events[-1]["inputs"] + events[-1]["outputs"]] == ["orders", "billed"]
print("events:", [event["eventType"] for event in events])
spark.stop()
