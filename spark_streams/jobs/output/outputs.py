"""[table] and [[output]] of a configuration: which rows go where; and [sql], which stands before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.connector.errors import ConfigError, OptionError
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.running.error_summary import first_line
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.job import as_texts, inherit_access
from spark_streams.jobs.output.owner import Claimant
from spark_streams.jobs.output.places import NamedPlace
from spark_streams.jobs.output.stream import Stream
from spark_streams.jobs.output.table import SHAPE as TABLE
from spark_streams.jobs.output.table import TableConfig, Writer
from spark_streams.jobs.output.table_columns import TableFit
from spark_streams.jobs.settings.config import FREE, Config, check_keys, value_at

# What a job has that writes to outputs.
SHAPE = {"table": TABLE, "output": list, "sql": {"query": str}}
_OUTPUT = {"name": str, "where": str, "select": (list, dict), "sql": str, "table": TABLE, "sink": FREE}


@dataclass(frozen=True)
class Output:
    """An output. name: from the configuration; rows: selects rows and columns; None: all good rows, unchanged; where:
    SQL of the good rows that become one row each, None: a row is not of one good row; columns: SQL of their columns,
    by name or as a list, None: those of the good row."""

    name: str
    to: TableConfig | Stream
    rows: Callable[[DataFrame], DataFrame] | None = None
    where: str | None = "true"
    columns: Mapping[str, str] | Sequence[str] | None = None

    @property
    def is_main(self) -> bool:
        """Whether this output is [table], not one of [[output]]."""
        return isinstance(self.to, TableConfig) and self.to.where == "table"

    @property
    def shown(self) -> str:
        """Name in `--check` and in the summary. The main table is named by its format."""
        return self.to.kind if isinstance(self.to, TableConfig) and self.is_main else f"output {self.name}"

    def select(self, good: DataFrame) -> DataFrame:
        return good if self.rows is None else self.rows(good)

    def check(self, good: DataFrame, claimant: Claimant) -> TableFit | None:
        """Return how the rows are fitted to the table, None for a stream. claimant: the job.

        Raises ConfigError if Spark cannot analyze the SQL, TableError if the columns do not fit a table that exists, or
        if it has another owner.
        """
        try:
            schema = self.select(good).schema
        except Exception as error:
            raise ConfigError(f"output {self.name}: {first_line(error)}") from error
        if isinstance(self.to, Stream):
            return None
        self.to.check_columns(schema.names)
        return checked_fit(self.to, self.name, good.sparkSession, schema, claimant)

    def null_in(self, good: DataFrame, fit: TableFit | None) -> Mapping[str, Column]:
        """Return for each NOT NULL column of the table whether a good row has no value for it. fit: of `check`."""
        if isinstance(self.to, Stream) or fit is None or self.where is None:
            return {}
        by_name = {name.lower(): column for name, column in self._columns(good)}
        return {
            name: F.expr(self.where) & is_null
            for name, is_null in self.to.null_in(fit, lambda name: by_name[name.lower()]).items()
        }

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

    def open(self, spark: SparkSession, fit: TableFit | None, claimant: Claimant) -> Writer:
        """Return the writer. fit: what `check` returned."""
        if isinstance(self.to, Stream):
            return self.to
        assert fit is not None
        return self.to.open(spark, self.name, fit, claimant)


def checked_fit(table: TableConfig, output: str, spark: SparkSession, rows: StructType, claimant: Claimant) -> TableFit:
    """Return how rows of these columns are fitted to a table of this job. Raises ConfigError or TableError."""
    table.check_format(spark)
    owned = table.check_owner(spark, claimant, claimant.before_start(output))
    fit = table.fit(spark, rows)
    return fit._replace(changed="; ".join(filter(None, (fit.changed, owned))))


def main_table(config: Config) -> TableConfig | None:
    """Return [table]; None if the configuration has none. Raises ConfigError."""
    settings = value_at(config, "table")
    return None if settings is None else TableConfig.parse(settings, "table", as_texts(settings.get("options", {})))


def outputs_of(config: Config, access: Mapping[str, str]) -> list[Output]:
    """Return all outputs, [table] first. Raises ConfigError.

    access: options of the server and the login, for outputs that do not set their own.
    """
    table = main_table(config)
    outputs = [] if table is None else [Output("table", table)]
    for number, settings in enumerate(value_at(config, "output", []), start=1):
        where = f"[[output]] {number}"
        if not isinstance(settings, dict):
            raise ConfigError(f"{where} must be a table, not {settings!r}")
        outputs.append(_output(settings, settings.get("name") or where, where, access))
    if not outputs:
        raise ConfigError("table.path is missing (or [[output]]): set one of them as the place for rows")
    names = [output.name for output in outputs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two outputs are called {name!r}: give each output its own name")
    named = [
        (output.to.catalog, output.to.name.lower())
        for output in outputs
        if isinstance(output.to, TableConfig) and output.to.name
    ]
    for catalog_and_name in named:
        if named.count(catalog_and_name) > 1:
            raise ConfigError(f"two outputs write table {catalog_and_name[1]}: give each output its own table")
    return outputs


def folders_of(outputs: Iterable[Output]) -> list[NamedPlace]:
    """Return the folders of the tables among the outputs."""
    tables = [output.to for output in outputs if isinstance(output.to, TableConfig)]
    return [table.folder for table in tables if table.folder is not None]


def stream_options(outputs: Iterable[Output]) -> dict[str, SinkOptions]:
    """Return the options of outputs that are streams, by the key that names the stream in messages."""
    return {
        f"output {output.name}: sink.stream": output.to.options for output in outputs if isinstance(output.to, Stream)
    }


def check_main_columns(outputs: Iterable[Output], names: Sequence[str]) -> None:
    """Check, before Spark is started, the columns of outputs that take all rows unchanged. Raises ConfigError."""
    for output in outputs:
        if output.rows is None and isinstance(output.to, TableConfig):
            output.to.check_columns(names)


def _output(settings: Config, name: str, where: str, access: Mapping[str, str]) -> Output:
    """Parse one [[output]]. Raises ConfigError."""
    check_keys(settings, _OUTPUT, "", where)
    if not settings.get("name"):
        raise ConfigError(f"{where}: name is missing; add a name, which identifies the output's batches")
    if ("table" in settings) == ("sink" in settings):
        raise ConfigError(f"output {name} needs exactly one of [output.table] and [output.sink]")
    if "sql" in settings and ("where" in settings or "select" in settings):
        raise ConfigError(f"output {name}: where and select have no meaning with sql; write them into the SQL")
    rows = _rows(settings, name)
    if "table" in settings:
        table = TableConfig.parse(
            settings["table"], f"output {name}: table", as_texts(settings["table"].get("options", {}))
        )
        of_one_row: str | None = None if "sql" in settings else settings.get("where", "true")
        return Output(name, table, rows, of_one_row, settings.get("select"))
    options = inherit_access(access, as_texts(settings["sink"]))
    try:
        sink_options = SinkOptions.parse(options)
    except OptionError as error:
        raise ConfigError(f"output {name}: {error.message}") from None
    if sink_options.stream is None and sink_options.stream_column is None:
        raise ConfigError(f"output {name}: sink.stream is missing (or sink.streamColumn): set one of them")
    return Output(name, Stream(sink_options, options, name), rows)


def _rows(settings: Config, name: str) -> Callable[[DataFrame], DataFrame] | None:
    if "sql" in settings:
        return lambda good: apply_sql(good, settings["sql"])
    if "where" not in settings and "select" not in settings:
        return None
    columns = settings.get("select")
    texts = columns.values() if isinstance(columns, dict) else columns or []
    if columns is not None and (not columns or not all(isinstance(text, str) for text in texts)):
        raise ConfigError(f"output {name}: select must be a list of SQL, or a table of names and SQL")

    def rows(good: DataFrame) -> DataFrame:
        selected = good.where(settings["where"]) if "where" in settings else good
        if columns is None:
            return selected
        if isinstance(columns, dict):
            return selected.select(*[F.expr(sql).alias(column) for column, sql in columns.items()])
        return selected.selectExpr(*columns)

    return rows


def apply_sql(rows: DataFrame, sql: str) -> DataFrame:
    """Run SQL over the rows, as the view `rows`."""
    rows.createOrReplaceTempView("rows")
    return rows.sparkSession.sql(sql)
