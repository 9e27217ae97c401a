"""[aggregate]: groups of rows, also by windows of event time, and one row for each of them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.connector.watch.failure import first_line
from spark_streams.jobs.job import Facts, Job, JobPart
from spark_streams.jobs.job_columns import SHAPE as COLUMNS
from spark_streams.jobs.job_columns import JobColumns
from spark_streams.jobs.job_config import FREE


class Groups(JobPart):
    """Groups of the rows with the columns of `[columns]`, as `[aggregate]` describes them.

    Raises:
        ConfigError: A key is missing, or contradicts another one.
    """

    KEYS = {
        **COLUMNS,
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
    }
    REQUIRED = ("aggregate.values",)

    def __init__(self, job: Job) -> None:
        self._job = job
        self._columns = JobColumns.parse(job.config)
        self._names: list[str] = []
        self._is_final = _check_keys(job, self._columns)

    @property
    def output_mode(self) -> str:
        """Spark's output mode: `append` for windows that are final, otherwise `update`."""
        return "append" if self._is_final else "update"

    def schema(self) -> StructType:
        """Return the columns to read. Raises ConfigError."""
        return self._columns.struct()

    def plan(self) -> Facts:
        values = self._job.get("aggregate.values")
        return {
            "groups_by": ", ".join(name for name in self._names if name not in values),
            "values": ", ".join(values),
            "when": "a window is final" if self._is_final else "a group has changed",
        }

    def aggregate(self, entries: DataFrame) -> DataFrame:
        """Return one row per group. Raises ConfigError if Spark cannot analyze an expression."""
        try:
            aggregated = self._aggregate(entries)
            self._names = aggregated.columns  # Spark analyzes the expressions
        except Exception as error:
            raise ConfigError(f"[aggregate]: {first_line(error)}") from error
        return aggregated

    def _aggregate(self, entries: DataFrame) -> DataFrame:
        job = self._job
        event_time, window = job.get("aggregate.event_time"), job.get("aggregate.window")
        if job.get("aggregate.watermark"):
            # An older Spark takes no quotes here.
            name = event_time if event_time.isidentifier() else quoted(event_time)
            entries = entries.withWatermark(name, job.get("aggregate.watermark"))
        keys = [_key(entries, key) for key in job.get("aggregate.keys", [])]
        if window:
            keys.append(F.window(F.col(quoted(event_time)), window, job.get("aggregate.slide")).alias("window"))
        rows = entries.where(job.get("aggregate.where", "true")).groupBy(*keys)
        aggregated = rows.agg(*[F.expr(sql).alias(name) for name, sql in job.get("aggregate.values").items()])
        if not window:
            return aggregated
        bounds = [F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")]
        return aggregated.select(*bounds, *[F.col(quoted(name)) for name in aggregated.columns if name != "window"])


def _check_keys(job: Job, columns: JobColumns) -> bool:
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


def _key(entries: DataFrame, key: str) -> Column:
    """Return a column by its name, or SQL with a name: `year(at) AS year`."""
    return F.col(quoted(key)) if key in entries.columns else F.expr(key)
