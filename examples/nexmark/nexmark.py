"""Nexmark over Redis Streams: joins, windows and state in Spark SQL, compared with the same SQL over files.

    python -m examples.nexmark.nexmark --events 200000              (at the top of a clone; the bundled engine)
    python -m examples.nexmark.nexmark --url redis://127.0.0.1:6379/0 --queries q4,q5

Each query reads the streams until their end. Its rows are compared with those of a batch over the same events.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import redis
from pyspark.sql import DataFrame, Row, SparkSession

from examples.nexmark.events import SCHEMAS, Event, events
from examples.nexmark.queries import QUERIES, Query

_TOGETHER = 5_000  # events of a pipeline

Views = Callable[[str], DataFrame]


def produce(client: redis.Redis, prefix: str, folder: Path, count: int) -> None:
    """Add the events to the streams {prefix}:person, … and write them to JSON files below the folder."""
    files = {}
    for kind in SCHEMAS:
        (folder / kind).mkdir(parents=True)
        files[kind] = (folder / kind / "events.json").open("w")
    pipeline = client.pipeline(transaction=False)
    for event in events(count):
        pipeline.xadd(f"{prefix}:{event.kind}", event.fields)  # type: ignore[arg-type] # its values are str
        files[event.kind].write(json.dumps(_typed(event)) + "\n")
        if len(pipeline) >= _TOGETHER:
            pipeline.execute()
    pipeline.execute()
    for file in files.values():
        file.close()


def _typed(event: Event) -> dict[str, str | int]:
    return {
        name: int(value) if f"{name} BIGINT" in SCHEMAS[event.kind] else value for name, value in event.fields.items()
    }


def columns(kind: str, query: Query) -> str:
    """Return those columns of a kind of event that a query names, and the time.

    Spark leaves out what a query does not need when it reads files. It does not tell a Python source, which decodes the
    fields of its schema.
    """
    words = {"dateTime", *re.findall(r"\w+", query.sql)}
    return ", ".join(column for column in SCHEMAS[kind].split(", ") if column.split()[0] in words)


def streams(spark: SparkSession, url: str, prefix: str, query: Query, group: str, **options: str) -> Views:
    """Return a function that returns the stream of a kind of event, read by this consumer group for the query. options:
    more of the source."""

    def view(kind: str) -> DataFrame:
        return (
            spark.readStream.format("rstream")
            .options(url=url, streams=f"{prefix}:{kind}", group=group, startingOffsets="earliest", **options)
            .schema(columns(kind, query))
            .load()
        )

    return view


def file_streams(spark: SparkSession, folder: Path) -> Views:
    """Return the same for Spark's file source."""
    return lambda kind: spark.readStream.schema(SCHEMAS[kind]).json(str(folder / kind))


def tables(spark: SparkSession, folder: Path) -> Views:
    """Return the same as tables."""
    return lambda kind: spark.read.schema(SCHEMAS[kind]).json(str(folder / kind))


def rows_of(spark: SparkSession, query: Query, views: Views) -> DataFrame:
    """Return the rows of a query over these views, those that end the input included."""
    for kind in SCHEMAS:
        views(kind).withWatermark("dateTime", "0 seconds").createOrReplaceTempView(kind)
    return spark.sql(query.sql)


def run(spark: SparkSession, query: Query, views: Views, folder: Path) -> float:
    """Run a query over streams to their end. Its rows are in the folder's `rows`. Return the seconds."""
    began = time.monotonic()
    running = (
        rows_of(spark, query, views)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    running.awaitTermination()
    return time.monotonic() - began


def result(spark: SparkSession, query: Query, rows: DataFrame) -> list[Row]:
    """Return the rows of real events, of the second statement if there is one."""
    real = rows.where(query.real)
    if query.then:
        real.createOrReplaceTempView("rows")
        real = spark.sql(query.then)
    return real.collect()


def differences(found: Iterable[Row], wanted: Iterable[Row]) -> tuple[Counter[Row], Counter[Row]]:
    """Return the rows that are missing, and those that are too many."""
    have, need = Counter(found), Counter(wanted)
    return need - have, have - need


def main(arguments: list[str] | None = None) -> int:
    """Run the queries of the command line. Return 1 if a row differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="of the server (default: a new bundled engine)")
    parser.add_argument("--events", type=int, default=200_000, help="number of events (default 200,000)")
    parser.add_argument("--queries", default=",".join(QUERIES), help="default: all")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.queries.split(",") if name not in QUERIES]
    if unknown:
        parser.error(f"there is no query {unknown[0]}; the queries are {', '.join(QUERIES)}")
    if chosen.url:
        return _run_all(chosen.url, chosen.queries.split(","), chosen.events)
    from spark_streams.engine import LocalEngine

    with LocalEngine() as engine:
        return _run_all(engine.url, chosen.queries.split(","), chosen.events)


def _run_all(url: str, names: Iterable[str], count: int) -> int:
    prefix, wrong = f"nexmark-{time.time_ns()}", 0
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    with tempfile.TemporaryDirectory() as home, redis.Redis.from_url(url) as client:
        folder = Path(home)
        try:
            produce(client, prefix, folder / "events", count)
            for name in names:
                query = QUERIES[name]
                seconds = run(spark, query, streams(spark, url, prefix, query, name), folder / name)
                found = result(spark, query, spark.read.parquet(str(folder / name / "rows")))
                wanted = result(spark, query, rows_of(spark, query, tables(spark, folder / "events")))
                missing, more = differences(found, wanted)
                wrong += bool(missing or more)
                said = (
                    "the same as the batch" if not missing and not more else f"{len(missing)} missing, {len(more)} more"
                )
                print(f"{name:<4} {query.title:<48} {len(found):>9,} rows, {said} · {count / seconds:>10,.0f} events/s")
        finally:
            client.delete(*client.scan_iter(f"*{prefix}*"))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
