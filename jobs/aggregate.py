"""Stream to stream: read a consumer group, group and aggregate the rows, append every group that changed."""

from __future__ import annotations

from _config import FREE
from _job import Bar, Job, first_line, main, run_query, trigger, waiting
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_streams.errors import ConfigError
from spark_streams.options import SINK, SOURCE

SHAPE = {
    "source": FREE,
    "columns": FREE,
    "aggregate": {"where": str, "keys": list, "values": FREE},
    "sink": FREE,
    "job": {"checkpoint": str, "trigger": str},
}
REQUIRED = [
    "source.streams",
    "source.group",
    "columns",
    "aggregate.keys",
    "aggregate.values",
    "sink.stream",
    "job.checkpoint",
]


def body(job: Job) -> None:
    source = job.check_options("source", SOURCE, "source")
    job.check_options("sink", SINK, "sink")
    # A group may have nothing but nulls, and an entry needs a field.
    sink = {"nulls": "empty", **job.options("sink")}
    when = trigger(job)
    total = waiting(source)
    spark = job.session()
    columns = job.schema("columns", ", ".join(f"`{name}` {kind}" for name, kind in job.get("columns").items()))
    entries = spark.readStream.format("rstream").schema(columns).options(**job.options("source")).load()
    appended = [0]

    def batch(changed: DataFrame, _number: int) -> None:
        # Spark gives a Python sink no update mode of its own; a batch of changed groups is appended here.
        changed = changed.persist()
        try:
            changed.write.format("rstream").mode("append").options(**sink).save()
            appended[0] += changed.count()
        finally:
            changed.unpersist()

    with Bar(job.console, "aggregate", total) as bar:
        query = (
            groups(job, entries)
            .writeStream.foreachBatch(batch)
            .outputMode("update")
            .option("checkpointLocation", job.get("job.checkpoint"))
            .trigger(**when)
            .start()
        )
        run_query(query, bar)
    job.say(entries=bar.done, groups=appended[0], stream=job.get("sink.stream"), entries_per_second=round(bar.rate))


def groups(job: Job, entries: DataFrame) -> DataFrame:
    """One row per group. Raises ConfigError where an expression cannot be understood."""
    try:
        rows = entries.where(job.get("aggregate.where", "true")).groupBy(*job.get("aggregate.keys"))
        return rows.agg(*[F.expr(sql).alias(name) for name, sql in job.get("aggregate.values").items()])
    except Exception as error:
        raise ConfigError(f"[aggregate]: {first_line(error)}") from error


if __name__ == "__main__":
    main("aggregate", __doc__, SHAPE, REQUIRED, body)
