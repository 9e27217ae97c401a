"""[columns], [decode], [[rule]] and [dead_letters]: which rows are good, and what is written of the others."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_streams.connector.deadletter.routing import TO, route_dead_letters
from spark_streams.connector.errors import ConfigError, DecodeError, JobError, TableError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.parsers import delays
from spark_streams.connector.source.rows.columns import UNFIT
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.connector.spark.worker import time_of_batch
from spark_streams.connector.watch.failure import first_line
from spark_streams.connector.watch.lineage.datasets import Dataset
from spark_streams.jobs.job import Facts, Job, JobPart, WrittenPart, session_settings
from spark_streams.jobs.job_columns import DECODE_SHAPE as DECODE
from spark_streams.jobs.job_columns import SHAPE as COLUMNS
from spark_streams.jobs.job_columns import WHY, JobColumns, Payload
from spark_streams.jobs.job_config import FREE
from spark_streams.jobs.parts.source_and_sink import Source, StreamOutput

_VERDICT = "STRUCT<reason: STRING, error: STRING, message: STRING>"
# Spark plans a query as a whole, with one result task. Counting cached rows is then one job. An adaptive plan is three:
# it fills the cache, counts, and adds the counts.
_PLANNED_AT_ONCE = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
_LONGEST_VALUE = 100  # characters of a value in a message
_METADATA = {"stream": "_stream", "entry_id": "_id", "timestamp": "_timestamp"}  # what the source calls them


def _verdict(reason: Column, error: str, message: Column) -> Column:
    return F.struct(reason.alias("reason"), F.lit(error).alias("error"), message.alias("message"))


def _unfit_verdict(types: Mapping[str, str]) -> Column:
    """Return the verdict on the first value that does not fit its column's type, null if all fit. types: SQL types by
    column.

    It is one expression for all columns: one for each of twenty took Spark seconds to analyze and to compile.
    """
    name = F.get(UNFIT, 0)  # UNFIT has the order of the columns, and is null if all fit
    texts = F.element_at(F.create_map(*[part for item in types.items() for part in _texts(*item)]), name)
    pairs = F.filter(F.map_entries("_fields"), lambda pair: pair.key == name.cast("binary"))
    value = F.make_valid_utf8(F.element_at(pairs, -1).value.cast("string"))  # the last value of a name counts
    shown = F.when(F.length(value) <= _LONGEST_VALUE, value).otherwise(
        F.concat(F.substring(value, 1, _LONGEST_VALUE), F.lit("…"))
    )
    message = F.concat(texts.before, shown, texts.after)
    return F.when(F.col(UNFIT).isNotNull(), _verdict(texts.reason, DecodeError.condition, message))


def _texts(name: str, kind: str) -> tuple[Column, Column]:
    """Return a column's name, and what the verdict on its value says."""
    texts = {
        "reason": f"decode: {name} does not fit {kind}",
        "before": f"field {name!r} is '",
        "after": f"', which does not fit {kind}",
    }
    return F.lit(name), F.struct(*[F.lit(text).alias(part) for part, text in texts.items()])


class Counts(NamedTuple):
    """Numbers of rows of a micro-batch. bad: by stream, reason, and whether they wait for a retry."""

    good: int
    bad: Counter[tuple[str, str, bool]]


@dataclass(frozen=True)
class Judged:
    """Rows of a micro-batch.

    rows: all, with the columns `_reason`, `_error` and `_message` and those of the entry, null for a good row; good:
    the good rows, with their columns alone; counts: counts them, once; is_kept: whether the first Spark job reads the
    batch into memory, with all tasks. Otherwise the one that writes the good rows counts them, before `counts` returns.
    """

    rows: DataFrame
    good: DataFrame
    counts: Callable[[], Counts]
    is_kept: bool


class Rules(JobPart):
    """Rules that make a row good: its values fit `[columns]` (or `[schema]`, `[decode]`), and no `[[rule]]` holds.

    If `source.mode` is set, the source handles values that do not fit. Otherwise they make a bad row whose reason names
    the field. With `retryDelay` of the source, bad rows wait for a retry. Raises ConfigError if a rule or a column
    cannot be used.
    """

    KEYS = {**COLUMNS, "decode": DECODE, "metadata": dict.fromkeys(_METADATA, str), "rule": list}

    def __init__(self, job: Job, source: Source) -> None:
        self._rules = job.get("rule", [])
        for rule in self._rules:
            texts = [value for value in rule.values() if isinstance(value, str)] if isinstance(rule, dict) else []
            if len(texts) != 2 or set(rule) != {"reason", "when"}:
                raise ConfigError(f"[[rule]] needs exactly reason and when, not {rule!r}")
        self._payload = Payload.parse(job.config)
        payload = self._payload
        self._columns = JobColumns.parse(job.config) if payload is None else JobColumns("[decode]", payload.columns)
        self._metadata = [(name, _METADATA[key]) for key, name in job.get("metadata", {}).items()]
        self._judges_values = job.get("source.mode") is None
        self._mode = source.options.mode
        self._retry_delay = source.retry_delay
        self._retry_columns = ["_attempt", "_first_failed"] if self._retry_delay else []
        self._entries = 0
        self._required: Sequence[tuple[str, str, Column]] = ()
        if not self.needs_spark:
            self._check_columns()

    @property
    def needs_spark(self) -> bool:
        """Whether only a Spark session can tell the columns."""
        return self._columns.needs_spark

    @property
    def names(self) -> list[str]:
        return [*self._columns.types, *(name for name, _ in self._metadata)]

    def _check_columns(self) -> None:
        """Raises ConfigError."""
        names = [name.lower() for name in self.names]
        for name, _ in self._metadata:
            if not name or names.count(name.lower()) > 1:
                raise ConfigError(f"[metadata] names {name!r}, which is empty or a column already: choose another name")
        for name in self.names:
            if name.startswith(("_", "dl.")) or name.lower() == "batch":
                where = self._columns.where if name in self._columns.types else "[metadata]"
                raise ConfigError(f"{where} names {name!r}: _…, dl.… and batch are reserved for the job; leave it out")

    def schema(self) -> StructType:
        """Return the schema that the source reads. Raises ConfigError."""
        self._check_columns()
        entry_fields = [StructField("_stream", StringType()), StructField("_id", StringType())]
        if self._retry_columns:
            entry_fields += [StructField("_attempt", IntegerType()), StructField("_first_failed", TimestampType())]
        if "_timestamp" in dict(self._metadata).values():
            entry_fields.append(StructField("_timestamp", TimestampType()))
        if self._judges_values:
            entry_fields.append(StructField(UNFIT, ArrayType(StringType())))
        entry_fields.append(StructField("_fields", MapType(BinaryType(), BinaryType())))
        columns = self._columns.struct().fields if self._payload is None else [self._payload.source_field]
        return StructType([*columns, *entry_fields])

    def rows(self, entries: DataFrame) -> DataFrame:
        """Return the entries with the columns, which a field may hold encoded, and those of `[metadata]`."""
        rows = entries if self._payload is None else self._payload.decoded(entries, self._columns.struct())
        return rows.withColumns({name: F.col(of_source) for name, of_source in self._metadata})

    def good(self, rows: DataFrame) -> DataFrame:
        """Return the good rows, before the query starts: Spark analyzes types and rules. Raises ConfigError."""
        try:
            judged = self._judged(rows)
            judged.schema  # noqa: B018 - the attribute starts Spark's analysis
        except Exception as error:
            raise ConfigError(f"{self._columns.where} or [[rule]]: {first_line(error)}") from error
        return self._good(judged)

    def require(self, required: Sequence[tuple[str, str, Column]]) -> None:
        """Make rows bad that a table cannot hold, because they have no value for one of its columns. required: for each
        NOT NULL column its name, its table, and whether a row has no value for it."""
        if required or self._required:
            self.__dict__.pop("_first_verdict", None)  # of the analysis before
        self._required = required

    def judging(
        self, rows: DataFrame, write: Callable[[Judged, int], None], at_once: bool
    ) -> tuple[DataFrame, Callable[[DataFrame, int], None]]:
        """Return the judged rows, and a writer of their micro-batches, which passes them to this function, with the
        number of the batch. at_once: whether one Spark job can write the good rows of a batch, and read it meanwhile.

        Then a batch is not kept in memory if the one before had good rows only. If it has bad rows, it is read again.
        """
        judged = self._judged(rows)
        # A verdict by chance may be another one when the batch is read again.
        at_once = at_once and judged._jdf.queryExecution().analyzed().deterministic()
        follows_good_ones = False

        def judge(rows: DataFrame, number: int) -> None:
            nonlocal follows_good_ones
            is_kept = not (at_once and follows_good_ones)
            observation, counted = Observation(), rows.persist() if is_kept else rows
            if not is_kept:
                good = F.count_if(F.col("_reason").isNull())
                counted = rows.observe(observation, good.alias("good"), F.count("_reason").alias("bad"))
            counts = functools.cache(lambda: self._count(rows) if is_kept else self._counted(rows, observation))
            try:
                write(Judged(rows, self._good(counted), counts, is_kept), number)
                self._entries += counts().good + counts().bad.total()
                follows_good_ones = not counts().bad
            finally:
                rows.unpersist()

        return judged, judge

    def _counted(self, rows: DataFrame, observation: Observation) -> Counts:
        """Return the numbers of rows after one Spark job has read and counted them. Raises JobError."""
        seen = observation.get
        if not seen["bad"]:
            return Counts(seen["good"], Counter())
        counts = self._count(rows.persist())
        again = {"good": counts.good, "bad": counts.bad.total()}
        if again != seen:
            raise JobError(
                f"a micro-batch was read twice, with different rows: first {seen['good']:,} good and {seen['bad']:,} "
                f"bad ones, then {again['good']:,} and {again['bad']:,}. Start the job again: it reads this batch once"
            )
        return counts

    def _count(self, rows: DataFrame) -> Counts:
        is_retried = F.lit(False)
        if self._retry_delay:
            is_retried = F.col("_reason").isNotNull() & (F.col("_attempt") <= len(delays(self._retry_delay)))
        keys = ("_stream", "_reason", is_retried.alias("again"))
        with session_settings(rows.sparkSession, _PLANNED_AT_ONCE):
            found = rows.groupBy(*keys).count().collect()
        counts = Counter({(row["_stream"], row["_reason"], row["again"]): row["count"] for row in found})
        return Counts(counts.pop((None, None, False), 0), counts)

    def plan(self) -> Facts:
        types = f"{len(self._columns.types)} columns"
        return {
            "types": types if self._judges_values else f"by the source, mode {self._mode}",
            "rules": ", ".join(rule["reason"] for rule in self._rules) or "none",
        }

    def summary(self) -> Facts:
        return {"entries": self._entries}

    def _judged(self, rows: DataFrame) -> DataFrame:
        """Return the columns under their names, with `_reason` (null for a good row) and what a dead letter needs. Of
        a good row that is null: the rows of a batch may stay in memory while it is written."""
        rows = rows.withColumn("_verdict", self._first_verdict)
        texts = {f"_{name}": F.col(f"_verdict.{name}") for name in ("reason", "error", "message")}
        is_bad = F.col("_verdict").isNotNull()
        of_letters = {name: F.when(is_bad, F.col(name)) for name in ("_stream", "_id", "_fields", *self._retry_columns)}
        return rows.withColumns({**texts, **of_letters}).drop(UNFIT, WHY, "_verdict")

    @functools.cached_property
    def _first_verdict(self) -> Column:
        """The verdict of a row, null for a good one. Building it takes hundreds of calls of the JVM: once for a run."""
        return F.coalesce(*self._verdicts(), F.lit(None).cast(_VERDICT))

    def _verdicts(self) -> Iterator[Column]:
        """Yield, per check, a column with its reason, error and message if it fails. The first one counts."""
        if self._payload is not None:
            reason = F.concat(F.lit("decode: "), WHY)
            yield F.when(F.col(WHY).isNotNull(), _verdict(reason, DecodeError.condition, self._payload.message()))
        elif self._judges_values:
            yield _unfit_verdict(self._columns.types)
        for rule in self._rules:
            message = F.lit(f"the rule holds: {rule['when']}")
            yield F.when(F.expr(rule["when"]), _verdict(F.lit(rule["reason"]), "rule", message))
        for name, table, is_null in self._required:
            message = F.lit(f"the row has no value for column {name!r}, which is NOT NULL in table {table}")
            yield F.when(is_null, _verdict(F.lit(f"null: {name}"), TableError.condition, message))

    def _good(self, judged: DataFrame) -> DataFrame:
        return judged.where("_reason IS NULL").select(*[F.col(quoted(name)) for name in self.names])


class DeadLetters(WrittenPart):
    """Stream of dead letters, with the options of `[dead_letters]`. With `retryDelay` of the source, bad rows wait for
    a retry. Raises ConfigError, OptionError."""

    KEYS = {"dead_letters": FREE}
    REQUIRED = ("dead_letters.stream",)

    def __init__(self, job: Job, source: Source) -> None:
        self.options = SinkOptions.parse(job.options("dead_letters"))
        self._source = source
        _check_options(self.options, source)
        retried = {"streamColumn": TO} if source.retry_delay else {}
        self._sink = StreamOutput(self.options, {**job.options("dead_letters"), **retried}, "letters")
        self._reasons: Counter[str] = Counter()
        self._retried = 0

    def streams(self) -> Mapping[str, SinkOptions]:
        return {"dead_letters.stream": self.options}

    def datasets(self) -> Iterable[Dataset | None]:
        return [self._sink.dataset]

    def plan(self) -> Facts:
        retry_delay = self._source.retry_delay
        return {
            **({"tried_again": f"after {retry_delay}"} if retry_delay else {}),
            "dead_letters": f"{self.options.stream} at {self.options.address}",
        }

    def write(self, judged: Judged) -> Mapping[str, int]:
        """Write the bad rows of a micro-batch. Return the number of dead letters by the stream of their entries."""
        counts = judged.counts().bad
        if counts:
            # Each entry is judged once, and a replay of its batch must write the same dead letter.
            rows = judged.rows if self._source.retry_delay else judged.rows.withColumn("_deliveries", F.lit(1))
            letters = route_dead_letters(
                rows,
                F.col("_reason").isNotNull(),
                F.col("_reason"),
                stage="etl",
                group=self._source.options.group,
                consumer=self._source.options.consumer,
                error=F.col("_error"),
                message=F.col("_message"),
                at=F.timestamp_millis(F.lit(time_of_batch(rows.sparkSession))),  # which a replay repeats
                retry_delay=self._source.retry_delay,
            ).letters
            self._sink.write(letters)
        dead: Counter[str] = Counter()
        for (stream, reason, is_retried), count in counts.items():
            self._reasons[reason] += count
            if is_retried:
                self._retried += count
            else:
                dead[stream] += count
        return dead

    def summary(self) -> Facts:
        return {
            "dead": self._reasons.total() - self._retried,
            **({"tried_again": self._retried} if self._source.retry_delay else {}),
            "reasons": dict(self._reasons),
        }


def _check_options(options: SinkOptions, source: Source) -> None:
    """Raise ConfigError for options with which dead letters could not be written, or rows could not wait."""
    for name in ("streamColumn", "idColumn", "shards"):
        if name in options.explicit:
            raise ConfigError(
                f"dead_letters.{name} has no meaning here: all dead letters go to dead_letters.stream; leave it out"
            )
    if not source.retry_delay:
        return
    if options.address.url != source.options.address.url:
        raise ConfigError(
            "source.retryDelay: rows to retry wait on the source's server, and dead_letters.url names another server: "
            "leave out one of these options"
        )
    trims = [name for name in ("maxlen", "minId", "retention", "trim") if name in options.explicit]
    if trims:
        raise ConfigError(
            f"source.retryDelay: dead_letters.{trims[0]} would also trim rows that wait for a retry: "
            "leave out one of these options"
        )
