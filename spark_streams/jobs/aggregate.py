"""Stream to stream: read a consumer group, group and aggregate its rows, also by windows of event time.

The job appends every group that a batch has changed, or every window when it is final.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_streams.errors import ConfigError
from spark_streams.jobs.feedback_loop import check_feedback_loop
from spark_streams.jobs.job import Job, Program
from spark_streams.jobs.query import SHAPE as JOB
from spark_streams.jobs.query import Query, foreach_batch
from spark_streams.jobs.schema.columns import SHAPE as SCHEMA
from spark_streams.jobs.schema.columns import Columns
from spark_streams.jobs.settings.config import FREE
from spark_streams.monitor.watch.lineage.datasets import sink_dataset
from spark_streams.options.sink_options import SinkOptions
from spark_streams.options.source_options import SourceOptions
from spark_streams.running.error_summary import first_line
from spark_streams.sink.encode.destination import Destination

SHAPE = {
    "source": FREE,
    **SCHEMA,
    "aggregate": {
        "where": str,
        "keys": list,
        "values": FREE,
        "event_time": str,
        "window": str,
        "slide": str,
        "watermark": str,
        "emit": str,
    },
    "sink": FREE,
    "job": JOB,
}
REQUIRED = ["source.group", "aggregate.values", "sink.stream", "job.checkpoint"]
# The groups are part of the micro-batch: they are written once, also if Spark replays it.
TRANSACTION = {"transaction": "groups"}


def body(job: Job) -> None:
    source = SourceOptions.parse(job.options("source"))
    sink_options = SinkOptions.parse(job.options("sink"))
    check_feedback_loop(source, {"sink.stream": sink_options})
    columns = Columns.parse(job.config)
    final = _check(job, columns)
    query = Query(job, source)
    spark = job.session()
    entries = spark.readStream.format("rstream").schema(columns.struct()).options(**job.options("source")).load()
    aggregated = groups(job, entries)
    job.plan(
        **query.plan(),
        groups_by=", ".join(name for name in aggregated.columns if name not in job.get("aggregate.values")),
        values=", ".join(job.get("aggregate.values")),
        write=f"{Destination.from_options(sink_options).shown} at {sink_options.address}",
        when="a window is final" if final else "a group has changed",
    )
    transaction = TRANSACTION if sink_options.delivery == "exactly-once" else {}
    # All values of a group may be null, and an entry needs a field.
    sink = {"nulls": "empty", **transaction, **job.options("sink")}
    appended = [0]

    def batch(changed: DataFrame, _number: int) -> None:
        # Spark has no update mode for Python sinks, so the job appends the changed groups of a batch.
        changed = changed.persist()
        try:
            changed.write.format("rstream").mode("append").options(**sink).save()
            appended[0] += changed.count()
        finally:
            changed.unpersist()

    query.watch(spark, [sink_dataset(sink_options)])
    progress = query.run(foreach_batch(aggregated, batch).outputMode("append" if final else "update"))
    job.summarize(
        entries=progress.entries,
        groups=appended[0],
        stream=sink_options.stream,
        entries_per_second=round(progress.rate),
    )


def _check(job: Job, columns: Columns) -> bool:
    """Check the keys of [aggregate]. Return whether only final windows are emitted. Raises ConfigError."""
    for key, needed in (("window", "event_time"), ("slide", "window"), ("watermark", "event_time")):
        if job.get(f"aggregate.{key}") and not job.get(f"aggregate.{needed}"):
            raise ConfigError(f"aggregate.{key} needs aggregate.{needed}")
    event_time = job.get("aggregate.event_time")
    if event_time is not None and not columns.needs_spark and event_time not in columns.types:
        raise ConfigError(f"aggregate.event_time names {event_time!r}, which is not among {columns.where}")
    if event_time is not None and not (job.get("aggregate.window") or job.get("aggregate.watermark")):
        raise ConfigError("aggregate.event_time has no meaning without aggregate.window or aggregate.watermark")
    if not job.get("aggregate.keys") and not job.get("aggregate.window"):
        raise ConfigError("aggregate.keys is missing (or aggregate.window): set one of them to name the groups")
    emit = job.get("aggregate.emit", "changed")
    if emit not in ("changed", "final"):
        raise ConfigError(f'aggregate.emit must be "changed" or "final", not {emit!r}')
    if emit == "final" and not (job.get("aggregate.watermark") and job.get("aggregate.window")):
        raise ConfigError(
            'aggregate.emit = "final" needs aggregate.window and aggregate.watermark: they define its end'
        )
    return bool(emit == "final")


def groups(job: Job, entries: DataFrame) -> DataFrame:
    """Return one row per group. Raises ConfigError if Spark cannot analyze an expression."""
    try:
        event_time, window = job.get("aggregate.event_time"), job.get("aggregate.window")
        if job.get("aggregate.watermark"):
            entries = entries.withWatermark(event_time, job.get("aggregate.watermark"))
        keys = [_key(entries, key) for key in job.get("aggregate.keys", [])]
        if window:
            keys.append(F.window(F.col(f"`{event_time}`"), window, job.get("aggregate.slide")).alias("window"))
        rows = entries.where(job.get("aggregate.where", "true")).groupBy(*keys)
        aggregated = rows.agg(*[F.expr(sql).alias(name) for name, sql in job.get("aggregate.values").items()])
        if window:
            bounds = [F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")]
            aggregated = aggregated.select(
                *bounds, *[F.col(f"`{name}`") for name in aggregated.columns if name != "window"]
            )
        aggregated.schema  # noqa: B018 - the attribute starts Spark's analysis
        return aggregated
    except Exception as error:
        raise ConfigError(f"[aggregate]: {first_line(error)}") from error


def _key(entries: DataFrame, key: str) -> Column:
    """Return a column by its name, or SQL with a name: `year(at) AS year`."""
    return F.col(f"`{key}`") if key in entries.columns else F.expr(key)


PROGRAM = Program(__doc__, SHAPE, REQUIRED, body)
