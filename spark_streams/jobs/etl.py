"""Stream to tables: read a consumer group, type and check every row, and write good rows to tables and streams.

Bad rows go to a dead-letter stream with the reason. A batch that is run again replaces the rows of its first run, and
does not send its dead letters a second time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.deadletter.write.origins import record_origins
from spark_streams.deadletter.write.routing import TO
from spark_streams.errors import ConfigError
from spark_streams.jobs.feedback_loop import check_feedback_loop
from spark_streams.jobs.job import Job, Program
from spark_streams.jobs.output.outputs import SHAPE as OUTPUTS
from spark_streams.jobs.output.outputs import Output, apply_sql, check_main_columns, outputs_of, stream_options
from spark_streams.jobs.output.table import Writer
from spark_streams.jobs.output.table_columns import TableFit
from spark_streams.jobs.query import SHAPE as JOB
from spark_streams.jobs.query import Query, count_added, foreach_batch
from spark_streams.jobs.schema.columns import SHAPE as SCHEMA
from spark_streams.jobs.schema.columns import Columns
from spark_streams.jobs.schema.payload import SHAPE as DECODE
from spark_streams.jobs.schema.payload import Payload
from spark_streams.jobs.settings.config import FREE
from spark_streams.jobs.split import Split
from spark_streams.monitor.watch.lineage.datasets import sink_dataset
from spark_streams.options.sink_options import SinkOptions
from spark_streams.options.source_options import SourceOptions
from spark_streams.running.error_summary import first_line
from spark_streams.wire.connect import connect

SHAPE = {
    "source": FREE,
    **SCHEMA,
    "decode": DECODE,
    "rule": list,
    **OUTPUTS,
    "dead_letters": FREE,
    "job": JOB,
}
REQUIRED = ["source.group", "dead_letters.stream", "job.checkpoint"]
# Dead letters are part of the micro-batch: they are written once, also if Spark replays it.
TRANSACTION = {"transaction": "letters"}


def body(job: Job) -> None:
    source = SourceOptions.parse(job.options("source"))
    dead_letter_options = _dead_letter_options(job)
    payload = Payload.parse(job.config)
    columns = Columns.parse(job.config) if payload is None else Columns("[decode]", payload.columns)
    outputs = outputs_of(job.config, job.access)
    check_feedback_loop(source, {**stream_options(outputs), "dead_letters.stream": dead_letter_options})
    retry_delay = _retry_delay(job, source, dead_letter_options)
    source_mode = job.get("source.mode")
    split = Split(columns, job.get("rule", []), source_mode, retry_delay, payload)
    sql = job.get("sql.query") or None
    if sql is None and not columns.needs_spark:
        check_main_columns(outputs, split.names)
    query = Query(job, source)
    source_dead_letters = source.dead_letter_stream
    moved_before = count_added(source.address, source_dead_letters)
    spark = job.session()
    entries = spark.readStream.format("rstream").schema(split.schema()).options(**job.options("source")).load()
    # A dead letter has the time of its batch, which a replay repeats.
    entries = entries.withColumn("_at", F.current_timestamp())
    entries = split.decoded(entries)
    fits = _check_outputs(split.good(split.check(entries)), sql, outputs)
    job.plan(
        **query.plan(),
        types=f"{len(split.names)} columns" if source_mode is None else f"by the source, mode {source.mode}",
        rules=", ".join(rule["reason"] for rule in job.get("rule", [])) or "none",
        **({} if sql is None else {"sql": " ".join(sql.split())}),
        **{
            output.shown: "; ".join(filter(None, (output.to.plan, fit and fit.plan)))
            for output, fit in zip(outputs, fits, strict=True)
        },
        **({"tried_again": f"after {retry_delay}"} if retry_delay else {}),
        dead_letters=f"{dead_letter_options.stream} at {dead_letter_options.address}",
    )
    _record_origins(dead_letter_options, query.streams, source.group)
    transaction = TRANSACTION if dead_letter_options.delivery == "exactly-once" else {}
    sink = {**transaction, **job.options("dead_letters"), **({"streamColumn": TO} if retry_delay else {})}
    opened = [(output, output.open(spark, fit)) for output, fit in zip(outputs, fits, strict=True)]
    batches = Batches(split, sql, opened, source, sink, query.count_dead_letters)
    query.watch(spark, [*(output.to.dataset for output in outputs), sink_dataset(dead_letter_options)])
    rate = query.run(foreach_batch(entries, batches.write)).rate
    job.summarize(entries=batches.read.total(), **batches.closing_numbers(), entries_per_second=round(rate))
    if source_dead_letters is not None:
        # Entries that the source moved before they became rows. (Other clients may write to that stream, too.)
        job.summarize(moved_by_source=count_added(source.address, source_dead_letters) - moved_before)


def _record_origins(options: SinkOptions, streams: Sequence[str], group: str) -> None:
    """Let a redrive send the dead letters of this job back to the streams that it reads."""
    assert options.stream is not None  # a required key
    with connect(options.address) as server:
        record_origins(server, options.stream, streams, group)


def _dead_letter_options(job: Job) -> SinkOptions:
    """Return the options of [dead_letters]. Raises ConfigError, OptionError."""
    sink_options = SinkOptions.parse(job.options("dead_letters"))
    for name in ("streamColumn", "idColumn", "shards"):
        if name in sink_options.explicit:
            raise ConfigError(
                f"dead_letters.{name} has no meaning here: all dead letters go to dead_letters.stream; leave it out"
            )
    return sink_options


def _retry_delay(job: Job, source: SourceOptions, dead_letter_options: SinkOptions) -> str:
    """Return source.retryDelay as the user wrote it, "" without one. Raises ConfigError if bad rows could not wait."""
    if source.retry_delay is None:
        return ""
    if dead_letter_options.address.url != source.address.url:
        raise ConfigError(
            "source.retryDelay: rows to retry wait on the source's server, and dead_letters.url names another server: "
            "leave out one of these options"
        )
    trims = [name for name in ("maxlen", "minId", "retention", "trim") if name in dead_letter_options.explicit]
    if trims:
        raise ConfigError(
            f"source.retryDelay: dead_letters.{trims[0]} would also trim rows that wait for a retry: "
            "leave out one of these options"
        )
    source_options = {name.lower(): value for name, value in job.options("source").items()}
    return source_options["retrydelay"]


def _check_outputs(good: DataFrame, sql: str | None, outputs: Sequence[Output]) -> list[TableFit | None]:
    """Let Spark analyze [sql] and the outputs, and return how rows fit their tables. Raises ConfigError, TableError."""
    if sql is not None:
        try:
            good = apply_sql(good, sql)
        except Exception as error:
            raise ConfigError(f"sql.query: {first_line(error)}") from error
    return [output.check(good) for output in outputs]


@contextlib.contextmanager
def _planned_at_once(spark: SparkSession) -> Iterator[None]:
    """Let Spark plan a query of the block as a whole, with one result task.

    Counting cached rows is then one job. An adaptive plan is three: it fills the cache, counts, and adds the counts.
    """
    settings = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    before = {name: str(spark.conf.get(name)) for name in settings}
    _set(spark, settings)
    try:
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        spark.conf.set(name, value)


class Batches:
    """Writer of micro-batches: good rows go to the outputs, bad rows to the dead letters.

    sql: query over the good rows, if any; outputs: each with the table or stream that it writes; sink: the options of
    the dead letters' stream. Counts of this run: read: rows by reason, "" for good rows; retried: bad rows that wait
    for a retry; written: rows by output. count_dead_letters: is called after each micro-batch with the number of dead
    letters by stream.
    """

    def __init__(
        self,
        split: Split,
        sql: str | None,
        outputs: Sequence[tuple[Output, Writer]],
        source: SourceOptions,
        sink: dict[str, str],
        count_dead_letters: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._count_dead_letters = count_dead_letters
        self._split, self._sql, self._outputs, self._source, self._sink = split, sql, outputs, source, sink
        self.read: Counter[str] = Counter()
        self.retried = 0
        self.written: Counter[str] = Counter()
        for _output, table in outputs:
            table.sweep()

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch."""
        judged = self._split.judge(rows).persist()
        try:
            keys = ("_stream", "_reason", self._split.is_retried().alias("again"))
            with _planned_at_once(rows.sparkSession):
                counts = judged.groupBy(*keys).count().collect()
            good_count = sum(row["count"] for row in counts if row["_reason"] is None)
            self._write_good(self._split.good(judged), good_count, number)
            if any(row["_reason"] is not None for row in counts):
                dead_letters = self._split.dead_letters(judged, self._source.group, self._source.consumer)
                dead_letters.write.format("rstream").mode("append").options(**self._sink).save()
        finally:
            judged.unpersist()
        dead_letters_by_stream: Counter[str] = Counter()
        for row in counts:
            if row["_reason"] is not None and not row["again"]:
                dead_letters_by_stream[row["_stream"]] += row["count"]
            self.read["" if row["_reason"] is None else row["_reason"]] += row["count"]
            self.retried += row["count"] if row["again"] else 0
        self._count_dead_letters(dead_letters_by_stream)

    def _write_good(self, good: DataFrame, count: int, number: int) -> None:
        """Write the good rows. count: their number."""
        if self._sql is None:
            for output, table in self._outputs:
                self._write_output(output, table, good, count, number)
            return
        transformed = apply_sql(good, self._sql).persist()
        try:
            count = transformed.count()
            for output, table in self._outputs:
                self._write_output(output, table, transformed, count, number)
        finally:
            transformed.unpersist()

    def _write_output(self, output: Output, table: Writer, good: DataFrame, count: int, number: int) -> None:
        if output.rows is None:
            table.write(good, number)
            self.written[output.name] += count
            return
        selected = output.select(good).persist()
        try:
            table.write(selected, number)
            self.written[output.name] += selected.count()
        finally:
            selected.unpersist()

    def closing_numbers(self) -> dict[str, object]:
        """Return the counts for the summary."""
        main_counts = {output.shown: self.written[output.name] for output, _ in self._outputs if output.is_main}
        output_counts = {output.name: self.written[output.name] for output, _ in self._outputs if not output.is_main}
        return {
            **main_counts,
            **({"outputs": output_counts} if output_counts else {}),
            "dead": self.read.total() - self.read[""] - self.retried,
            **({"tried_again": self.retried} if self._split.retry_delay else {}),
            "reasons": {reason: count for reason, count in self.read.items() if reason},
        }


PROGRAM = Program(__doc__, SHAPE, REQUIRED, body)
