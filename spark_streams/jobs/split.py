"""Split the rows of the job etl: good rows, and bad rows with a reason."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
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

from spark_streams.deadletter.write.routing import route_dead_letters
from spark_streams.errors import ConfigError
from spark_streams.jobs.schema.columns import Columns, quoted
from spark_streams.jobs.settings.config import Config
from spark_streams.options.values import delays
from spark_streams.running.error_summary import first_line
from spark_streams.source.rows.columns import UNFIT


def _is_str(value: object) -> bool:
    return isinstance(value, str)


class Split:
    """Rules that split rows into good rows and bad rows.

    columns: the fields and their types; rules: {reason, when}; mode: `source.mode`, None if it is not set: then a value
    that does not fit its type makes a dead letter whose reason names the field. If it is set, the source handles such
    values. retry_delay: `source.retryDelay`, "" if it is not set: bad rows are retried.
    """

    def __init__(self, columns: Columns, rules: list[Config], mode: str | None, retry_delay: str = "") -> None:
        """Raises ConfigError."""
        for rule in rules:
            if not isinstance(rule, dict) or set(rule) != {"reason", "when"} or not all(map(_is_str, rule.values())):
                raise ConfigError(f"[[rule]] needs exactly reason and when, not {rule!r}")
        self._columns, self._rules = columns, rules
        self._judges_values = mode is None
        self.retry_delay = retry_delay
        self._retry_columns = ["_attempt", "_first_failed"] if retry_delay else []
        if not columns.needs_spark:
            self._check_columns()

    @property
    def names(self) -> list[str]:
        return list(self._columns.types)

    def _check_columns(self) -> None:
        """Raises ConfigError."""
        for name in self.names:
            if name.startswith(("_", "dl.")) or name.lower() == "batch":
                raise ConfigError(
                    f"{self._columns.where} names {name!r}: _…, dl.… and batch are reserved for the job; leave it out"
                )

    def schema(self) -> StructType:
        """Return the schema that the source reads. Raises ConfigError."""
        self._check_columns()
        entry_fields = [StructField("_stream", StringType()), StructField("_id", StringType())]
        if self._retry_columns:
            entry_fields += [StructField("_attempt", IntegerType()), StructField("_first_failed", TimestampType())]
        if self._judges_values:
            entry_fields.append(StructField(UNFIT, ArrayType(StringType())))
        entry_fields.append(StructField("_fields", MapType(BinaryType(), BinaryType())))
        return StructType([*self._columns.struct().fields, *entry_fields])

    def check(self, entries: DataFrame) -> DataFrame:
        """Judge the entries before the query starts, so that Spark analyzes types and rules. Raises ConfigError."""
        try:
            judged = self.judge(entries)
            judged.schema  # noqa: B018 - the attribute starts Spark's analysis
        except Exception as error:
            raise ConfigError(f"{self._columns.where} or [[rule]]: {first_line(error)}") from error
        return judged

    def judge(self, entries: DataFrame) -> DataFrame:
        """Return the columns under their names, with `_reason` (null for a good row) and the entry's `_fields`.

        Only bad rows have `_fields`, because the rows of a batch are cached while it is written.
        """
        rows = entries.withColumn("_reason", F.coalesce(*self._reasons(), F.lit(None).cast("string")))
        return rows.withColumn("_fields", F.when(F.col("_reason").isNotNull(), F.col("_fields"))).drop(UNFIT)

    def _reasons(self) -> list[Column]:
        """Return, per check, a column with its reason if it fails. The first reason counts."""
        decode_reasons = [
            F.when(F.array_contains(UNFIT, name), F.lit(f"decode: {name} is no {kind}"))
            for name, kind in (self._columns.types.items() if self._judges_values else ())
        ]
        return decode_reasons + [F.when(F.expr(rule["when"]), F.lit(rule["reason"])) for rule in self._rules]

    def is_retried(self) -> Column:
        """Return a column: whether a judged row waits for a retry."""
        if not self.retry_delay:
            return F.lit(False)
        return F.col("_reason").isNotNull() & (F.col("_attempt") <= len(delays(self.retry_delay)))

    def good(self, judged: DataFrame) -> DataFrame:
        return judged.where("_reason IS NULL").select(*[F.col(quoted(name)) for name in self.names])

    def dead_letters(self, judged: DataFrame, group: str, consumer: str) -> DataFrame:
        """Return the bad rows as dead letters. Rows to retry have their stream in column TO."""
        bad = F.col("_reason").isNotNull()
        reason, moment = F.col("_reason"), F.col("_at")
        return route_dead_letters(
            judged,
            bad,
            reason,
            stage="etl",
            group=group,
            consumer=consumer,
            at=moment,
            retry_delay=self.retry_delay,
        ).letters
