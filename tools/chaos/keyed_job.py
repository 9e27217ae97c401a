"""The job of tools.chaos.keyed: `python -m tools.chaos.keyed_job FILE` runs queries over shards, written as by a user.

FILE has the format of tools.chaos.job. A query is ordered, and writes from its streams into shards by key.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_streams
from tools.chaos.job import error_of, session
from tools.chaos.query import Query


def start(spark: SparkSession, query: Query) -> StreamingQuery:
    """Start one query."""
    settings = {"url": query.url, "group": query.group, "startingOffsets": "earliest", **query.options}
    rows = spark.readStream.format("rstream").schema("key STRING, n LONG").options(**settings).load()
    writer = rows.writeStream.format("rstream").queryName(query.name)
    writer = writer.options(url=query.url, stream=query.out, **query.out_options)
    return writer.option("checkpointLocation", str(query.path / "checkpoint")).start()


def main(file: str) -> None:
    """Run the queries of the file until each has ended or its file `stop` exists."""
    plan = json.loads(Path(file).read_text())
    spark = session(plan["master"], plan["conf"])
    spark_streams.register(spark)
    running = [(query, start(spark, query)) for query in map(Query.from_json, plan["queries"])]
    for query, _ in running:
        query.sign("up").touch()
    while running:
        for query, streaming in list(running):
            if query.sign("stop").exists() and streaming.isActive:
                streaming.stop()
            if not streaming.isActive:
                query.sign("ended").write_text(error_of(streaming))
                running.remove((query, streaming))
        time.sleep(0.02)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
