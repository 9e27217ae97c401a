"""[sql], [table] and [[output]]: which of the good rows of a micro-batch go where, to tables and to streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.connector.errors import ConfigError, OptionError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.connector.watch.failure import first_line
from spark_streams.connector.watch.lineage.datasets import Dataset
from spark_streams.jobs.job import Facts, Job, WrittenPart, as_texts, inherit_access
from spark_streams.jobs.job_config import FREE, Config, check_keys, value_at
from spark_streams.jobs.output.owned_table import OutputWriter, OwnedTable
from spark_streams.jobs.output.ownership import Claimant, check_places, other_places
from spark_streams.jobs.output.table_columns import DELTA, FILES, PACKAGES
from spark_streams.jobs.output.table_config import SHAPE as TABLE
from spark_streams.jobs.output.table_config import TableConfig
from spark_streams.jobs.parts.rules import Judged, Rules
from spark_streams.jobs.parts.source_and_sink import StreamOutput

# What a job has that writes to outputs.
SHAPE = {"table": TABLE, "output": list, "sql": {"query": str}}
_OUTPUT = {"name": str, "where": str, "select": (list, dict), "sql": str, "table": TABLE, "sink": FREE}


@dataclass
class JobOutput:
    """An output of the good rows."""

    name: str  # from the configuration
    to: TableConfig | StreamOutput
    sql: str | None = None  # over the view of good rows; otherwise each row is of one good row
    where: str | None = None  # SQL of the good rows that are written, None: all
    columns: Mapping[str, str] | Sequence[str] | None = None  # SQL of their columns, None: those of the good row
    writer: OutputWriter | None = None  # after `check_rows`

    @property
    def is_main(self) -> bool:
        """Whether this output is [table], not one of [[output]]."""
        return isinstance(self.to, TableConfig) and self.to.where == "table"

    @property
    def shown(self) -> str:
        """Name in `--check` and in the summary. The main table is named by its format."""
        return self.to.kind if isinstance(self.to, TableConfig) and self.is_main else f"output {self.name}"

    @property
    def is_whole(self) -> bool:
        """Whether it takes all good rows, unchanged."""
        return self.sql is None and self.where is None and self.columns is None

    def select(self, good: DataFrame) -> DataFrame:
        """Return the rows of this output."""
        if self.sql is not None:
            return apply_sql(good, self.sql)
        selected = good if self.where is None else good.where(self.where)
        if self.columns is None:
            return selected
        if isinstance(self.columns, Mapping):
            return selected.select(*[F.expr(sql).alias(column) for column, sql in self.columns.items()])
        return selected.selectExpr(*self.columns)

    @property
    def plan(self) -> str:
        """Line of `--check`."""
        changes = self.writer.fit.plan if isinstance(self.writer, OwnedTable) else ""
        return "; ".join(filter(None, (self.to.plan, changes)))

    def check_rows(self, good: DataFrame, claimant: Claimant) -> None:
        """Find out how the rows are fitted to the table. claimant: the job.

        Raises ConfigError if Spark cannot analyze the SQL, TableError if the columns do not fit a table that exists, or
        if it has another owner.
        """
        try:
            schema = self.select(good).schema
        except Exception as error:
            raise ConfigError(f"output {self.name}: {first_line(error)}") from error
        if isinstance(self.to, StreamOutput):
            self.writer = self.to
            return
        self.to.check_columns(schema.names)
        self.writer = checked_table(self.to, self.name, good.sparkSession, schema, claimant)

    def null_in(self, good: DataFrame) -> Iterator[tuple[str, str, Column]]:
        """Yield each NOT NULL column, its table, and whether a good row has no value for it. After `check_rows`."""
        if isinstance(self.to, StreamOutput) or not isinstance(self.writer, OwnedTable) or self.sql is not None:
            return
        by_name = {name.lower(): column for name, column in self._columns(good)}
        for name, is_null in self.to.null_in(self.writer.fit, lambda name: by_name[name.lower()]).items():
            yield name, self.to.place, F.expr(self.where or "true") & is_null

    def _columns(self, good: DataFrame) -> Iterator[tuple[str, Column]]:
        """Yield the columns of the rows, by name, as columns of a good row."""
        if self.columns is None:
            yield from ((name, F.col(quoted(name))) for name in good.columns)
        elif isinstance(self.columns, Mapping):
            yield from ((name, F.expr(sql)) for name, sql in self.columns.items())
        else:
            for sql in self.columns:
                names = good.selectExpr(sql).columns
                yield from ((name, F.expr(sql) if len(names) == 1 else F.col(quoted(name))) for name in names)

    def write(self, good: DataFrame, count: Callable[[], int], number: int, is_kept: bool) -> int:
        """Write one micro-batch. Return how many rows are written. count: counts the good rows.

        is_kept: whether the first Spark job reads the batch into memory. That is the table's own if its rows are
        visible all at once, and all tasks write it.
        """
        assert self.writer is not None
        if self.is_whole:
            if is_kept and not (isinstance(self.to, TableConfig) and self.to.kind in (*FILES, DELTA)):
                count()
            self.writer.write(good, number)
            return count()
        selected = self.select(good).persist()
        try:
            selected_count = selected.count()  # it fills the cache, with all tasks
            self.writer.write(selected, number)
            return selected_count
        finally:
            selected.unpersist()


def checked_table(
    table: TableConfig, output: str, spark: SparkSession, rows: StructType, claimant: Claimant
) -> OwnedTable:
    """Return a table of this job for rows of these columns. Raises ConfigError or TableError."""
    table.check_format(spark)
    owned = table.check_owner(spark, claimant, claimant.as_owner(claimant.query, output))
    fit = table.fit(spark, rows)
    fit = fit._replace(changed="; ".join(filter(None, (fit.changed, owned))))
    return table.open(spark, output, fit, claimant)


def main_table(config: Config) -> TableConfig | None:
    """Return [table]; None if the configuration has none. Raises ConfigError."""
    settings = value_at(config, "table")
    return None if settings is None else TableConfig.parse(settings, "table", as_texts(settings.get("options", {})))


def outputs_of(config: Config, access: Mapping[str, str]) -> list[JobOutput]:
    """Return all outputs, [table] first. Raises ConfigError.

    access: options of the server and the login, for outputs that do not set their own.
    """
    table = main_table(config)
    outputs = [] if table is None else [JobOutput("table", table)]
    for number, settings in enumerate(value_at(config, "output", []), start=1):
        where = f"[[output]] {number}"
        if not isinstance(settings, dict):
            raise ConfigError(f"{where} must be a table, not {settings!r}")
        outputs.append(_parsed(settings, settings.get("name") or where, where, access))
    if not outputs:
        raise ConfigError("table.path is missing (or [[output]]): set one of them as the place for rows")
    names = [output.name for output in outputs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two outputs are called {name!r}: give each output its own name")
    return outputs


def check_main_columns(outputs: Iterable[JobOutput], names: Sequence[str]) -> None:
    """Check, before Spark is started, the columns of outputs that take all rows unchanged. Raises ConfigError."""
    for output in outputs:
        if output.is_whole and isinstance(output.to, TableConfig):
            output.to.check_columns(names)


def _parsed(settings: Config, name: str, where: str, access: Mapping[str, str]) -> JobOutput:
    """Parse one [[output]]. Raises ConfigError."""
    check_keys(settings, _OUTPUT, "", where)
    if not settings.get("name"):
        raise ConfigError(f"{where}: name is missing; add a name, which identifies the output's batches")
    if ("table" in settings) == ("sink" in settings):
        raise ConfigError(f"output {name} needs exactly one of [output.table] and [output.sink]")
    if "sql" in settings and ("where" in settings or "select" in settings):
        raise ConfigError(f"output {name}: where and select have no meaning with sql; write them into the SQL")
    sql, where_sql, columns = settings.get("sql"), settings.get("where"), settings.get("select")
    texts = columns.values() if isinstance(columns, dict) else columns or []
    if columns is not None and (not columns or not all(isinstance(text, str) for text in texts)):
        raise ConfigError(f"output {name}: select must be a list of SQL, or a table of names and SQL")
    if "table" in settings:
        table = TableConfig.parse(
            settings["table"], f"output {name}: table", as_texts(settings["table"].get("options", {}))
        )
        return JobOutput(name, table, sql, where_sql, columns)
    options = inherit_access(access, as_texts(settings["sink"]))
    try:
        sink_options = SinkOptions.parse(options)
    except OptionError as error:
        raise ConfigError(f"output {name}: {error.message}") from None
    if sink_options.stream is None and sink_options.stream_column is None:
        raise ConfigError(f"output {name}: sink.stream is missing (or sink.streamColumn): set one of them")
    return JobOutput(name, StreamOutput(sink_options, options, f"output:{name}"), sql, where_sql, columns)


def apply_sql(rows: DataFrame, sql: str) -> DataFrame:
    """Run SQL over the rows, as the view `rows`."""
    rows.createOrReplaceTempView("rows")
    return rows.sparkSession.sql(sql)


class Outputs(WrittenPart):
    """Tables and streams to which the good rows of each micro-batch are written, one after the other. Raises
    ConfigError if the tables `[sql]`, `[table]` and `[[output]]` cannot be used."""

    KEYS = SHAPE

    def __init__(self, job: Job, rules: Rules) -> None:
        self._job, self._rules = job, rules
        self._outputs = outputs_of(job.config, job.access)
        self._sql: str | None = job.get("sql.query") or None
        self._written: Counter[str] = Counter()
        if self._sql is None and not rules.needs_spark:
            check_main_columns(self._outputs, rules.names)

    def check(self, good: DataFrame) -> None:
        """Let Spark analyze the SQL, and find out how rows fit their tables.

        Args:
            good: Rows with the columns that the outputs will get.

        Raises:
            ConfigError: Spark cannot analyze the SQL, or cannot write a format; or two outputs share a place.
            TableError: The columns do not fit a table that exists, or it belongs to another query.
        """
        try:
            rows = good if self._sql is None else apply_sql(good, self._sql)
        except Exception as error:
            raise ConfigError(f"sql.query: {first_line(error)}") from error
        tables = [output.to for output in self._outputs if isinstance(output.to, TableConfig)]
        places = [place for table in tables if (place := table.place_in(good.sparkSession)) is not None]
        check_places(places, other_places(self._job.config, self._job.files))
        claimant = Claimant.of_job(self._job, good.sparkSession)
        for output in self._outputs:
            output.check_rows(rows, claimant)
        if self._sql is None:
            self._rules.require([required for output in self._outputs for required in output.null_in(good)])

    def streams(self) -> Mapping[str, SinkOptions]:
        return {
            f"output {output.name}: sink.stream": output.to.options
            for output in self._outputs
            if isinstance(output.to, StreamOutput)
        }

    def datasets(self) -> Iterable[Dataset | None]:
        return [output.to.dataset for output in self._outputs]

    def plan(self) -> Facts:
        return {
            **({} if self._sql is None else {"sql": " ".join(self._sql.split())}),
            **{output.shown: output.plan for output in self._outputs},
        }

    @property
    def is_one_table(self) -> bool:
        """Whether there is one table alone, which takes all good rows, and shows those of a batch all at once."""
        [output, *others] = self._outputs
        is_table = isinstance(output.to, TableConfig) and output.to.kind in (*FILES, *PACKAGES)
        return is_table and output.is_whole and not others and self._sql is None

    def write(self, judged: Judged, number: int) -> None:
        """Write the good rows of a micro-batch to all outputs. number: of the batch."""
        if self._sql is None:
            self._write_all(judged.good, lambda: judged.counts().good, number, judged.is_kept)
            return
        transformed = apply_sql(judged.good, self._sql).persist()
        try:
            count = transformed.count()
            self._write_all(transformed, lambda: count, number, True)
        finally:
            transformed.unpersist()

    def _write_all(self, rows: DataFrame, count: Callable[[], int], number: int, is_kept: bool) -> None:
        for output in self._outputs:
            self._written[output.name] += output.write(rows, count, number, is_kept)

    def summary(self) -> Facts:
        main_counts = {output.shown: self._written[output.name] for output in self._outputs if output.is_main}
        counts = {output.name: self._written[output.name] for output in self._outputs if not output.is_main}
        return {**main_counts, **({"outputs": counts} if counts else {})}
