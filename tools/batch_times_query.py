"""The query that tools/batch_times.py measures and kills: `python -m tools.batch_times_query PLAN`.

PLAN: {"url": …, "target": "10s", "checkpoint": …, "log": …, "costs": {"0": 0.001, "11": 0.01}}. costs: seconds of a row
in the sink, by the number of the first batch that they hold for.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame

import spark_streams
from tools.chaos.job import session


def main(plan_file: str) -> None:
    """Run the query until the process is killed."""
    plan = json.loads(Path(plan_file).read_text())
    costs: list[tuple[int, float]] = sorted((int(first), cost) for first, cost in plan["costs"].items())

    def write(rows: DataFrame, batch: int) -> None:
        time.sleep(rows.count() * next(cost for first, cost in reversed(costs) if first <= batch))

    spark = session("local[2]", {})
    spark_streams.register(spark)
    with spark_streams.watch(spark, plan["url"], log=plan["log"]):
        source = spark.readStream.format("rstream").schema("n LONG")
        options = {"url": plan["url"], "streams": "s", "group": "g", "startingOffsets": "earliest"}
        frame = source.options(targetBatchTime=plan["target"], **options).load()
        frame.writeStream.foreachBatch(write).option(
            "checkpointLocation", plan["checkpoint"]
        ).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
