"""Stream to Parquet: read a consumer group, type and check every row, write the good ones partitioned, and send the
others to a dead-letter stream with the reason. A batch that is run again replaces what its first run wrote, and finds
the letters that it sent.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.deadletter.routing import route_dead_letters
from spark_streams.errors import ConfigError
from spark_streams.jobs.config import FREE
from spark_streams.jobs.job import Job, Program
from spark_streams.jobs.parquet import BatchFolders
from spark_streams.jobs.query import SHAPE as JOB
from spark_streams.jobs.query import Query, added, foreach_batch
from spark_streams.options import SINK, SOURCE, Options
from spark_streams.running.failing import first_line

SHAPE = {
    "source": FREE,
    "columns": FREE,
    "rule": list,
    "parquet": {"path": str, "partition_by": list},
    "dead_letters": FREE,
    "job": JOB,
}
REQUIRED = ["source.group", "columns", "parquet.path", "dead_letters.stream", "job.checkpoint"]
# The letters are a part of the micro-batch: written once, also where it is replayed.
TRANSACTION = {"transaction": "letters"}


def body(job: Job) -> None:
    source = job.check_options("source", SOURCE, "source")
    letters_to = _letters_to(job)
    types: dict[str, str] = job.get("columns")
    split = Split(types, job.get("rule", []), job.get("parquet.partition_by", []), job.get("source.mode") is not None)
    query = Query(job, source)
    gone = source["deadLetterStream"]
    before = added(source.address, gone)
    spark = job.session()
    entries = spark.readStream.format("rstream").schema(split.schema()).options(**job.options("source")).load()
    # The time of a letter is the batch's: a replay repeats it.
    entries = entries.withColumn("_at", F.current_timestamp())
    split.check(entries)
    job.plan(
        **query.plan(),
        types="by the source, mode " + source["mode"] if split.by_source else f"{len(types)} columns",
        rules=", ".join(rule["reason"] for rule in job.get("rule", [])) or "none",
        parquet=f"{job.get('parquet.path')} by {', '.join([*job.get('parquet.partition_by', []), 'batch'])}",
        dead_letters=f"{letters_to['stream']} at {letters_to.address}",
    )
    once = TRANSACTION if letters_to["delivery"] == "exactly-once" else {}
    folders = BatchFolders(spark, job.get("parquet.path"), job.get("parquet.partition_by", []))
    folders.sweep()
    batches = Batches(split, folders, source, {**once, **job.options("dead_letters")})
    query.watch(spark)
    rate = query.run(foreach_batch(entries, batches.write)).rate
    read = batches.read
    job.say(
        entries=read.total(),
        parquet=read[""],
        dead=read.total() - read[""],
        reasons={reason: count for reason, count in read.items() if reason},
        entries_per_second=round(rate),
    )
    if gone is not None:
        # Those that the source itself moved: they never became rows. (Others may write to that stream, too.)
        job.say(moved_by_source=added(source.address, gone) - before)


def _letters_to(job: Job) -> Options:
    """The options of [dead_letters]. Raises ConfigError, OptionError."""
    given = job.check_options("dead_letters", SINK, "sink")
    for name in ("streamColumn", "idColumn"):
        if given[name] is not None:
            raise ConfigError(f"dead_letters.{name} has no meaning here: letters go whole to dead_letters.stream")
    return given


def _is_str(value: object) -> bool:
    return isinstance(value, str)


class Split:
    """Which rows are good, and why the others are not.

    types: per field its SQL type; rules: {reason, when}; by_source: `source.mode` is given, and says what becomes of a
    value that does not fit its type. Without it such a value makes a dead letter with the field in its reason.
    """

    def __init__(
        self, types: dict[str, str], rules: list[dict[str, Any]], partition_by: list[str], by_source: bool
    ) -> None:
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
        self.by_source = by_source

    def schema(self) -> StructType:
        """What the source is asked for. Raises ConfigError."""
        columns = ", ".join(f"`{name}` {kind if self.by_source else 'STRING'}" for name, kind in self._types.items())
        try:
            return StructType.fromDDL(f"{columns}, `_stream` STRING, `_id` STRING, `_fields` MAP<BINARY, BINARY>")  # type: ignore[return-value]
        except Exception as error:
            raise ConfigError(f"[columns]: {first_line(error)}") from error

    def check(self, entries: DataFrame) -> None:
        """Let Spark look at the types and the rules before the query starts. Raises ConfigError."""
        try:
            self.judge(entries).schema  # noqa: B018 - analysing is the point
        except Exception as error:
            raise ConfigError(f"[columns] or [[rule]]: {first_line(error)}") from error

    def judge(self, entries: DataFrame) -> DataFrame:
        """The typed columns under their names, their texts in `_raw`, `_reason`: null for a good row; and `_fields`."""
        texts = F.struct(*[F.col(f"`{name}`") for name in self._types]).alias("_raw")
        if self.by_source:
            typed = [F.col(f"`{name}`") for name in self._types]
        else:
            typed = [F.expr(f"try_cast(`{name}` AS {kind})").alias(name) for name, kind in self._types.items()]
        rows = entries.select("_stream", "_id", "_fields", "_at", texts, *typed)
        return rows.withColumn("_reason", F.coalesce(*self._reasons(), F.lit(None).cast("string")))

    def _reasons(self) -> list[Column]:
        """Per check, the reason where it fails; the first that fails counts."""
        unfit = [
            F.when(F.expr(f"_raw.`{name}` IS NOT NULL AND `{name}` IS NULL"), F.lit(f"decode: {name} is no {kind}"))
            for name, kind in (() if self.by_source else self._types.items())
        ]
        return unfit + [F.when(F.expr(rule["when"]), F.lit(rule["reason"])) for rule in self._rules]

    def good(self, judged: DataFrame) -> DataFrame:
        return judged.where("_reason IS NULL").select(*[F.col(f"`{name}`") for name in self._types])

    def letters(self, judged: DataFrame, group: str, consumer: str) -> DataFrame:
        """The bad rows as dead letters."""
        bad = F.col("_reason").isNotNull()
        reason, moment = F.col("_reason"), F.col("_at")
        return route_dead_letters(judged, bad, reason, stage="etl", group=group, consumer=consumer, at=moment).letters


class Batches:
    """Where the rows of a micro-batch go: the good ones to Parquet, the others to the dead letters.

    sink: the options of the dead letters' stream; read: how many rows so far by their reason, "" for the good ones.
    """

    def __init__(self, split: Split, folders: BatchFolders, source: Options, sink: dict[str, str]) -> None:
        self._split, self._folders, self._source, self._sink = split, folders, source, sink
        self.read: Counter[str] = Counter()

    def write(self, rows: DataFrame, number: int) -> None:
        """One micro-batch."""
        judged = self._split.judge(rows).persist()
        try:
            counts = judged.groupBy("_reason").count().collect()
            self._folders.write(self._split.good(judged), number)
            if any(row["_reason"] is not None for row in counts):
                letters = self._split.letters(judged, self._source["group"], self._source["consumer"])
                letters.write.format("rstream").mode("append").options(**self._sink).save()
        finally:
            judged.unpersist()
        for row in counts:
            self.read["" if row["_reason"] is None else row["_reason"]] += row["count"]


PROGRAM = Program(__doc__, SHAPE, REQUIRED, body)
