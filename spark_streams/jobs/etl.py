"""Stream to tables: read a consumer group, type and check every row, write the good ones to a table, or to several and
to streams, and send the others to a dead-letter stream with the reason. A batch that is run again replaces what its
first run wrote, and finds the letters that it sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_streams.deadletter.write.routing import TO
from spark_streams.errors import ConfigError
from spark_streams.jobs.job import Job, Program
from spark_streams.jobs.output.outputs import SHAPE as OUTPUTS
from spark_streams.jobs.output.outputs import Output, apply_sql, check_main_columns, outputs_of, stream_options
from spark_streams.jobs.output.table import Table
from spark_streams.jobs.query import SHAPE as JOB
from spark_streams.jobs.query import Query, added, foreach_batch
from spark_streams.jobs.schema.columns import SHAPE as SCHEMA
from spark_streams.jobs.schema.columns import Columns
from spark_streams.jobs.settings.config import FREE
from spark_streams.jobs.split import Split
from spark_streams.jobs.ways_back import check_ways_back
from spark_streams.options.sink_options import SinkOptions
from spark_streams.options.source_options import SourceOptions
from spark_streams.running.error_summary import first_line

SHAPE = {
    "source": FREE,
    **SCHEMA,
    "rule": list,
    **OUTPUTS,
    "dead_letters": FREE,
    "job": JOB,
}
REQUIRED = ["source.group", "dead_letters.stream", "job.checkpoint"]
# The letters are a part of the micro-batch: written once, also where it is replayed.
TRANSACTION = {"transaction": "letters"}


def body(job: Job) -> None:
    source = SourceOptions.parse(job.options("source"))
    letters_to = _letters_to(job)
    columns = Columns.of(job.config)
    outputs = outputs_of(job.config, job.access)
    check_ways_back(source, {**stream_options(outputs), "dead_letters.stream": letters_to})
    retry_delay = _retry_delay(job, source, letters_to)
    split = Split(columns, job.get("rule", []), job.get("source.mode") is not None, retry_delay)
    sql = job.get("sql.query") or None
    if sql is None and not columns.needs_spark:
        check_main_columns(outputs, split.names)
    query = Query(job, source)
    gone = source.dead_letter_stream
    before = added(source.address, gone)
    spark = job.session()
    entries = spark.readStream.format("rstream").schema(split.schema()).options(**job.options("source")).load()
    # The time of a letter is the batch's: a replay repeats it.
    entries = entries.withColumn("_at", F.current_timestamp())
    split.check(entries)
    _check_outputs(split.good(split.judge(entries)), sql, outputs)
    job.plan(
        **query.plan(),
        types="by the source, mode " + source.mode if split.by_source else f"{len(split.names)} columns",
        rules=", ".join(rule["reason"] for rule in job.get("rule", [])) or "none",
        **({} if sql is None else {"sql": " ".join(sql.split())}),
        **{output.shown: output.to.plan for output in outputs},
        **({"tried_again": f"after {retry_delay}"} if retry_delay else {}),
        dead_letters=f"{letters_to.stream} at {letters_to.address}",
    )
    once = TRANSACTION if letters_to.delivery == "exactly-once" else {}
    sink = {**once, **job.options("dead_letters"), **({"streamColumn": TO} if retry_delay else {})}
    batches = Batches(split, sql, [(one, one.open(spark)) for one in outputs], source, sink)
    query.watch(spark)
    rate = query.run(foreach_batch(entries, batches.write)).rate
    job.say(entries=batches.read.total(), **batches.told(), entries_per_second=round(rate))
    if gone is not None:
        # Those that the source itself moved: they never became rows. (Others may write to that stream, too.)
        job.say(moved_by_source=added(source.address, gone) - before)


def _letters_to(job: Job) -> SinkOptions:
    """The options of [dead_letters]. Raises ConfigError, OptionError."""
    given = SinkOptions.parse(job.options("dead_letters"))
    for name in ("streamColumn", "idColumn", "shards"):
        if name in given.given:
            raise ConfigError(f"dead_letters.{name} has no meaning here: letters go whole to dead_letters.stream")
    return given


def _retry_delay(job: Job, source: SourceOptions, letters_to: SinkOptions) -> str:
    """source.retryDelay as it is written, "" without one. Raises ConfigError where bad rows could not wait."""
    if source.retry_delay is None:
        return ""
    if letters_to.address.url != source.address.url:
        raise ConfigError(
            "source.retryDelay: rows that are tried again wait on the source's server, and dead_letters.url is another "
            "one: drop one of them"
        )
    trims = [name for name in ("maxlen", "minId", "retention", "trim") if name in letters_to.given]
    if trims:
        raise ConfigError(
            f"source.retryDelay: dead_letters.{trims[0]} would trim what waits for another try, too: drop one of them"
        )
    given = {name.lower(): value for name, value in job.options("source").items()}
    return given["retrydelay"]


def _check_outputs(good: DataFrame, sql: str | None, outputs: Sequence[Output]) -> None:
    """Let Spark look at [sql] and at the outputs. Raises ConfigError."""
    if sql is not None:
        try:
            good = apply_sql(good, sql)
        except Exception as error:
            raise ConfigError(f"sql.query: {first_line(error)}") from error
    for output in outputs:
        output.check(good)


class Batches:
    """Where the rows of a micro-batch go: the good ones to the outputs, the others to the dead letters.

    sql: what is made of the good rows before, if anything; outputs: each with what it is written to; sink: the options
    of the dead letters' stream; read: how many rows so far by their reason, "" for the good ones; tried_again: how many
    of the others wait for another try; written: how many rows by their output.
    """

    def __init__(
        self,
        split: Split,
        sql: str | None,
        outputs: Sequence[tuple[Output, Table]],
        source: SourceOptions,
        sink: dict[str, str],
    ) -> None:
        self._split, self._sql, self._outputs, self._source, self._sink = split, sql, outputs, source, sink
        self.read: Counter[str] = Counter()
        self.tried_again = 0
        self.written: Counter[str] = Counter()
        for _output, place in outputs:
            place.sweep()

    def write(self, rows: DataFrame, number: int) -> None:
        """One micro-batch."""
        judged = self._split.judge(rows).persist()
        try:
            counts = judged.groupBy("_reason", self._split.is_tried_again().alias("again")).count().collect()
            fine = sum(row["count"] for row in counts if row["_reason"] is None)
            self._write_good(self._split.good(judged), fine, number)
            if any(row["_reason"] is not None for row in counts):
                letters = self._split.letters(judged, self._source.group, self._source.consumer)
                letters.write.format("rstream").mode("append").options(**self._sink).save()
        finally:
            judged.unpersist()
        for row in counts:
            self.read["" if row["_reason"] is None else row["_reason"]] += row["count"]
            self.tried_again += row["count"] if row["again"] else 0

    def _write_good(self, good: DataFrame, count: int, number: int) -> None:
        """count: how many they are."""
        if self._sql is None:
            for output, place in self._outputs:
                self._write_output(output, place, good, count, number)
            return
        made = apply_sql(good, self._sql).persist()
        try:
            count = made.count()
            for output, place in self._outputs:
                self._write_output(output, place, made, count, number)
        finally:
            made.unpersist()

    def _write_output(self, output: Output, place: Table, good: DataFrame, count: int, number: int) -> None:
        if output.rows is None:
            place.write(good, number)
            self.written[output.name] += count
            return
        chosen = output.of(good).persist()
        try:
            place.write(chosen, number)
            self.written[output.name] += chosen.count()
        finally:
            chosen.unpersist()

    def told(self) -> dict[str, object]:
        """For the closing numbers."""
        main = {one.shown: self.written[one.name] for one, _ in self._outputs if one.is_main}
        others = {one.name: self.written[one.name] for one, _ in self._outputs if not one.is_main}
        return {
            **main,
            **({"outputs": others} if others else {}),
            "dead": self.read.total() - self.read[""] - self.tried_again,
            **({"tried_again": self.tried_again} if self._split.retry_delay else {}),
            "reasons": {reason: count for reason, count in self.read.items() if reason},
        }


PROGRAM = Program(__doc__, SHAPE, REQUIRED, body)
