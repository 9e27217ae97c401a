"""[sql], [table] and [[output]]: where the good rows of a micro-batch go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.running.error_summary import first_line
from spark_streams.connector.watch.lineage.datasets import Dataset
from spark_streams.jobs.job import Job
from spark_streams.jobs.output.outputs import SHAPE as OUTPUTS
from spark_streams.jobs.output.outputs import (
    Output,
    apply_sql,
    check_main_columns,
    folders_of,
    outputs_of,
    stream_options,
)
from spark_streams.jobs.output.owner import Claimant
from spark_streams.jobs.output.places import check_places, other_places
from spark_streams.jobs.output.table import TableConfig, Writer
from spark_streams.jobs.output.table_columns import TableFit
from spark_streams.jobs.part import Facts, Written
from spark_streams.jobs.parts.rules import Judged, Rules


class Outputs(Written):
    """Tables and streams to which the good rows of each micro-batch are written, one after the other.

    Args:
        job: The job, with its configuration.
        rules: The rules that tell which rows are good.

    Raises:
        ConfigError: The tables `[sql]`, `[table]` and `[[output]]` cannot be used.
    """

    KEYS = OUTPUTS

    def __init__(self, job: Job, rules: Rules) -> None:
        self._job, self._rules = job, rules
        self._outputs = outputs_of(job.config, job.access)
        check_places(folders_of(self._outputs), other_places(job.config, job.config_file))
        self._sql: str | None = job.get("sql.query") or None
        self._fits: list[TableFit | None] = [None] * len(self._outputs)
        self._writers: list[Writer] = []
        self._written: Counter[str] = Counter()
        if self._sql is None and not rules.needs_spark:
            check_main_columns(self._outputs, rules.names)

    def check(self, good: DataFrame) -> None:
        """Let Spark analyze the SQL, and find out how rows fit their tables.

        Args:
            good: Rows with the columns that the outputs will get.

        Raises:
            ConfigError: Spark cannot analyze the SQL, or cannot write a format.
            TableError: The columns do not fit a table that exists, or it belongs to another query.
        """
        try:
            rows = good if self._sql is None else apply_sql(good, self._sql)
        except Exception as error:
            raise ConfigError(f"sql.query: {first_line(error)}") from error
        self._spark = good.sparkSession
        self._claimant = Claimant.of_job(self._job, self._spark)
        self._fits = [output.check(rows, self._claimant) for output in self._outputs]
        if self._sql is None:
            self._rules.require([
                (name, output.to.place, is_null)
                for output, fit in zip(self._outputs, self._fits, strict=True) if isinstance(output.to, TableConfig)
                for name, is_null in output.null_in(good, fit).items()
            ])  # fmt: skip

    def streams(self) -> Mapping[str, SinkOptions]:
        return stream_options(self._outputs)

    def datasets(self) -> Iterable[Dataset | None]:
        return [output.to.dataset for output in self._outputs]

    def plan(self) -> Facts:
        return {
            **({} if self._sql is None else {"sql": " ".join(self._sql.split())}),
            **{
                output.shown: "; ".join(filter(None, (output.to.plan, fit and fit.plan)))
                for output, fit in zip(self._outputs, self._fits, strict=True)
            },
        }

    def open(self, streams: Sequence[str]) -> None:
        pairs = zip(self._outputs, self._fits, strict=True)
        self._writers = [output.open(self._spark, fit, self._claimant) for output, fit in pairs]

    def write(self, judged: Judged, number: int) -> None:
        """Write the good rows of a micro-batch to all outputs. number: of the batch."""
        if self._sql is None:
            self._write_all(judged.good, judged.good_count, number)
            return
        transformed = apply_sql(judged.good, self._sql).persist()
        try:
            self._write_all(transformed, transformed.count(), number)
        finally:
            transformed.unpersist()

    def _write_all(self, rows: DataFrame, count: int, number: int) -> None:
        for output, writer in zip(self._outputs, self._writers, strict=True):
            self._write_output(output, writer, rows, count, number)

    def _write_output(self, output: Output, writer: Writer, rows: DataFrame, count: int, number: int) -> None:
        if output.rows is None:
            writer.write(rows, number)
            self._written[output.name] += count
            return
        selected = output.select(rows).persist()
        try:
            count = selected.count()  # it fills the cache, with all tasks
            writer.write(selected, number)
            self._written[output.name] += count
        finally:
            selected.unpersist()

    def summary(self) -> Facts:
        main_counts = {output.shown: self._written[output.name] for output in self._outputs if output.is_main}
        counts = {output.name: self._written[output.name] for output in self._outputs if not output.is_main}
        return {**main_counts, **({"outputs": counts} if counts else {})}
