"""[table], [parquet] and [[output]] of a configuration: which rows go where; and [sql], which stands before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.errors import ConfigError, OptionError
from spark_streams.jobs.job import as_texts, beside
from spark_streams.jobs.output.stream import Stream
from spark_streams.jobs.output.table import PARQUET_SHAPE, Table, TableConfig
from spark_streams.jobs.output.table import SHAPE as TABLE
from spark_streams.jobs.settings.config import FREE, Config, check_keys, value_at
from spark_streams.options.sink_options import SinkOptions
from spark_streams.running.error_summary import first_line

# What a job has that writes to outputs.
SHAPE = {"table": TABLE, "parquet": PARQUET_SHAPE, "output": list, "sql": {"query": str}}
_OUTPUT = {"name": str, "where": str, "select": (list, dict), "sql": str, "table": TABLE, "sink": FREE}


@dataclass(frozen=True)
class Output:
    """name: the configuration's; rows: which of the good rows, and what of them; None: all as they are."""

    name: str
    to: TableConfig | Stream
    rows: Callable[[DataFrame], DataFrame] | None = None

    @property
    def is_main(self) -> bool:
        """Whether it is [table], not one of [[output]]."""
        return isinstance(self.to, TableConfig) and self.to.where in ("table", "parquet")

    @property
    def shown(self) -> str:
        """As `--check` and the closing numbers call it: the main table by its format."""
        return self.to.kind if isinstance(self.to, TableConfig) and self.is_main else f"output {self.name}"

    def of(self, good: DataFrame) -> DataFrame:
        return good if self.rows is None else self.rows(good)

    def check(self, good: DataFrame) -> None:
        """Whether the SQL can be understood, and its columns fit. Raises ConfigError."""
        try:
            names = self.of(good).columns
        except Exception as error:
            raise ConfigError(f"output {self.name}: {first_line(error)}") from error
        if isinstance(self.to, TableConfig):
            self.to.check_columns(names)
            self.to.check_format(good.sparkSession)

    def open(self, spark: SparkSession) -> Table:
        return self.to if isinstance(self.to, Stream) else self.to.open(spark, self.name)


def main_table(config: Config) -> TableConfig | None:
    """[table], whose older name is [parquet]; None where neither is there. Raises ConfigError."""
    table, parquet = value_at(config, "table"), value_at(config, "parquet")
    if table is None and parquet is None:
        return None
    given = {**(table or {}), **(parquet or {})}
    if parquet is not None and given.get("format", "parquet") != "parquet":
        raise ConfigError(f"[parquet] is the older name of [table], whose format is {given['format']!r}: say table.…")
    return TableConfig.of(given, "parquet" if table is None else "table", as_texts(given.get("options", {})))


def outputs_of(config: Config, access: Mapping[str, str]) -> list[Output]:
    """All of them, [table] first. access: the server and who connects, as options, unless an output says so. Raises
    ConfigError."""
    table = main_table(config)
    found = [] if table is None else [Output("table", table)]
    for number, given in enumerate(value_at(config, "output", []), start=1):
        where = f"[[output]] {number}"
        if not isinstance(given, dict):
            raise ConfigError(f"{where} must be a table, not {given!r}")
        found.append(_output(given, given.get("name") or where, where, access))
    if not found:
        raise ConfigError("table.path is missing (or [[output]]): say where the rows go")
    names = [output.name for output in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two outputs are called {name!r}: their names tell their batches apart")
    return found


def stream_options(outputs: Iterable[Output]) -> dict[str, SinkOptions]:
    """The options of those that are streams, by the key that names the stream in messages."""
    return {f"output {one.name}: sink.stream": one.to.options for one in outputs if isinstance(one.to, Stream)}


def check_main_columns(outputs: Iterable[Output], names: Sequence[str]) -> None:
    """What can be said before Spark is started of outputs that take all rows as they are. Raises ConfigError."""
    for output in outputs:
        if output.rows is None and isinstance(output.to, TableConfig):
            output.to.check_columns(names)


def _output(given: Config, name: str, where: str, access: Mapping[str, str]) -> Output:
    """Raises ConfigError."""
    check_keys(given, _OUTPUT, "", where)
    if not given.get("name"):
        raise ConfigError(f"{where}: name is missing; its batches are known by it")
    if ("table" in given) == ("sink" in given):
        raise ConfigError(f"output {name} needs [output.table] or [output.sink], and one of them")
    if "sql" in given and ("where" in given or "select" in given):
        raise ConfigError(f"output {name}: where and select have no meaning beside sql, which can say it")
    rows = _rows(given, name)
    if "table" in given:
        table = given["table"]
        return Output(name, TableConfig.of(table, f"output {name}: table", as_texts(table.get("options", {}))), rows)
    options = beside(access, as_texts(given["sink"]))
    try:
        checked = SinkOptions.parse(options)
    except OptionError as error:
        raise ConfigError(f"output {name}: {error.message}") from None
    if checked.stream is None and checked.stream_column is None:
        raise ConfigError(f"output {name}: sink.stream is missing (or sink.streamColumn): say where its rows go")
    return Output(name, Stream(checked, options, name), rows)


def _rows(given: Config, name: str) -> Callable[[DataFrame], DataFrame] | None:
    if "sql" in given:
        return lambda good: apply_sql(good, given["sql"])
    if "where" not in given and "select" not in given:
        return None
    columns = given.get("select")
    texts = columns.values() if isinstance(columns, dict) else columns or []
    if columns is not None and (not columns or not all(isinstance(one, str) for one in texts)):
        raise ConfigError(f"output {name}: select must be a list of SQL, or a table of names and SQL")

    def rows(good: DataFrame) -> DataFrame:
        chosen = good.where(given["where"]) if "where" in given else good
        if columns is None:
            return chosen
        if isinstance(columns, dict):
            return chosen.select(*[F.expr(sql).alias(column) for column, sql in columns.items()])
        return chosen.selectExpr(*columns)

    return rows


def apply_sql(rows: DataFrame, sql: str) -> DataFrame:
    """SQL over the rows, which it calls `rows`."""
    rows.createOrReplaceTempView("rows")
    return rows.sparkSession.sql(sql)
