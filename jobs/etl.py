"""Stream to Parquet: read a consumer group, type and check every row, write the good ones partitioned, and send the
others to a dead-letter stream with the reason. A batch that is run again replaces what its first run wrote.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from _config import FREE
from _job import Bar, Job, first_line, main, run_query, trigger, waiting
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.deadletter.routing import route_dead_letters
from spark_streams.errors import ConfigError
from spark_streams.options import SINK, SOURCE

SHAPE = {
    "source": FREE,
    "columns": FREE,
    "rule": list,
    "parquet": {"path": str, "partition_by": list},
    "dead_letters": FREE,
    "job": {"checkpoint": str, "trigger": str},
}
REQUIRED = ["source.streams", "source.group", "columns", "parquet.path", "dead_letters.stream", "job.checkpoint"]


def body(job: Job) -> None:
    source = job.check_options("source", SOURCE, "source")
    if job.get("source.mode") is not None:
        raise ConfigError("source.mode has no meaning here: a value that does not fit its type makes a dead letter")
    job.check_options("dead_letters", SINK, "sink")
    when = trigger(job)
    types: dict[str, str] = job.get("columns")
    split = Split(types, job.get("rule", []), job.get("parquet.partition_by", []))
    total = waiting(source)
    spark = job.session()
    texts = ", ".join(f"`{name}` STRING" for name in types)
    raw = StructType.fromDDL(f"{texts}, `_stream` STRING, `_id` STRING, `_fields` MAP<BINARY, BINARY>")
    _sweep(spark, job.get("parquet.path"))
    entries = spark.readStream.format("rstream").schema(raw).options(**job.options("source")).load()
    split.check(entries)

    read: Counter[str] = Counter()

    def batch(rows: DataFrame, number: int) -> None:
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "query"
        judged = split.judge(rows).persist()
        try:
            counts = judged.groupBy("_reason").count().collect()
            _write_parquet(job, split.good(judged), f"{query[:8]}-{number}")
            if any(row["_reason"] is not None for row in counts):
                letters = split.letters(judged, source["group"], source["consumer"])
                letters.write.format("rstream").mode("append").options(**job.options("dead_letters")).save()
        finally:
            judged.unpersist()
        for row in counts:
            read["" if row["_reason"] is None else row["_reason"]] += row["count"]

    with Bar(job.console, "etl", total) as bar:
        query = (
            entries.writeStream.foreachBatch(batch)
            .option("checkpointLocation", job.get("job.checkpoint"))
            .trigger(**when)
            .start()
        )
        run_query(query, bar)
    job.say(
        entries=read.total(),
        parquet=read[""],
        dead=read.total() - read[""],
        reasons={reason: count for reason, count in read.items() if reason},
        entries_per_second=round(bar.rate),
    )


def _write_parquet(job: Job, rows: DataFrame, batch: str) -> None:
    """Each batch has partitions of its own and overwrites just these: a replay leaves every row once."""
    (
        rows.withColumn("batch", F.lit(f"b{batch}"))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*job.get("parquet.partition_by", []), "batch")
        .parquet(job.get("parquet.path"))
    )


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _sweep(spark: SparkSession, path: str) -> None:
    """Remove what a killed run left half-written; readers pass over it, but it takes up room."""
    jvm = spark.sparkContext._jvm
    left = jvm.org.apache.hadoop.fs.Path(path, ".spark-staging-*")
    store = left.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    for found in store.globStatus(left) or []:
        store.delete(found.getPath(), True)


class Split:
    """Which rows are good, and why the others are not. types: per field its SQL type; rules: {reason, when}."""

    def __init__(self, types: dict[str, str], rules: list[dict[str, Any]], partition_by: list[str]) -> None:
        for rule in rules:
            if not isinstance(rule, dict) or set(rule) != {"reason", "when"} or not all(map(_is_str, rule.values())):
                raise ConfigError(f"[[rule]] needs exactly reason and when, not {rule!r}")
        for name in types:
            if name.startswith(("_", "dl.")) or name.lower() == "batch":
                raise ConfigError(f"[columns] names {name!r}: _…, dl.… and batch are names that the job itself uses")
        for name in partition_by:
            if name not in types:
                raise ConfigError(f"parquet.partition_by names {name!r}, which is not among [columns]")
        self._types, self._rules = types, rules

    def check(self, entries: DataFrame) -> None:
        """Let Spark look at the types and the rules before the query starts. Raises ConfigError."""
        try:
            self.judge(entries).schema  # noqa: B018 - analysing is the point
        except Exception as error:
            raise ConfigError(f"[columns] or [[rule]]: {first_line(error)}") from error

    def judge(self, entries: DataFrame) -> DataFrame:
        """The typed columns under their names, their texts in `_raw`, `_reason`: null for a good row; and `_fields`."""
        typed = [F.expr(f"try_cast(`{name}` AS {kind})").alias(name) for name, kind in self._types.items()]
        texts = F.struct(*[F.col(f"`{name}`") for name in self._types]).alias("_raw")
        rows = entries.select("_stream", "_id", "_fields", texts, *typed)
        return rows.withColumn("_reason", F.coalesce(*self._reasons(), F.lit(None).cast("string")))

    def _reasons(self) -> list[Column]:
        """Per check, the reason where it fails; the first that fails counts."""
        unfit = [
            F.when(F.expr(f"_raw.`{name}` IS NOT NULL AND `{name}` IS NULL"), F.lit(f"decode: {name} is no {kind}"))
            for name, kind in self._types.items()
        ]
        return unfit + [F.when(F.expr(rule["when"]), F.lit(rule["reason"])) for rule in self._rules]

    def good(self, judged: DataFrame) -> DataFrame:
        return judged.where("_reason IS NULL").select(*[F.col(f"`{name}`") for name in self._types])

    def letters(self, judged: DataFrame, group: str, consumer: str) -> DataFrame:
        """The bad rows as dead letters."""
        bad = F.col("_reason").isNotNull()
        return route_dead_letters(judged, bad, F.col("_reason"), stage="etl", group=group, consumer=consumer).letters


if __name__ == "__main__":
    main("etl", __doc__, SHAPE, REQUIRED, body)
