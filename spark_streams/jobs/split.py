"""Which rows of an etl are good, and why the others are not."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
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
from spark_streams.jobs.schema.columns import Columns, is_nested
from spark_streams.jobs.settings.config import Config
from spark_streams.options.values import delays
from spark_streams.running.error_summary import first_line


def _is_str(value: object) -> bool:
    return isinstance(value, str)


class Split:
    """Which rows are good, and why the others are not.

    columns: the fields and their types; rules: {reason, when}; by_source: `source.mode` is given, and says what becomes
    of a value that does not fit its type. Without it such a value makes a dead letter with the field in its reason.
    retry_delay: `source.retryDelay`, where it is given: bad rows are tried again.
    """

    def __init__(self, columns: Columns, rules: list[Config], by_source: bool, retry_delay: str = "") -> None:
        """Raises ConfigError."""
        for rule in rules:
            if not isinstance(rule, dict) or set(rule) != {"reason", "when"} or not all(map(_is_str, rule.values())):
                raise ConfigError(f"[[rule]] needs exactly reason and when, not {rule!r}")
        self._columns, self._rules = columns, rules
        self.by_source = by_source
        self.retry_delay = retry_delay
        self._tries = ["_attempt", "_first_failed"] if retry_delay else []
        if not columns.needs_spark:
            self._check_columns()

    @property
    def names(self) -> list[str]:
        return list(self._columns.types)

    def _check_columns(self) -> None:
        """Raises ConfigError."""
        for name, kind in self._columns.types.items():
            if name.startswith(("_", "dl.")) or name.lower() == "batch":
                raise ConfigError(
                    f"{self._columns.where} names {name!r}: _…, dl.… and batch are names that the job itself uses"
                )
            if is_nested(kind) and not self.by_source:
                raise ConfigError(
                    f"{self._columns.where}: {name} is {kind}, which is JSON in an entry, which the source reads: set "
                    'source.mode ("DEADLETTER" with source.deadLetterStream, for one)'
                )

    def schema(self) -> StructType:
        """What the source is asked for. Raises ConfigError."""
        self._check_columns()
        texts = [StructField(name, StringType()) for name in self.names]
        fields = self._columns.struct().fields if self.by_source else texts
        of_entry = [StructField("_stream", StringType()), StructField("_id", StringType())]
        if self._tries:
            of_entry += [StructField("_attempt", IntegerType()), StructField("_first_failed", TimestampType())]
        return StructType([*fields, *of_entry, StructField("_fields", MapType(BinaryType(), BinaryType()))])

    def check(self, entries: DataFrame) -> None:
        """Let Spark look at the types and the rules before the query starts. Raises ConfigError."""
        try:
            self.judge(entries).schema  # noqa: B018 - analysing is the point
        except Exception as error:
            raise ConfigError(f"{self._columns.where} or [[rule]]: {first_line(error)}") from error

    def judge(self, entries: DataFrame) -> DataFrame:
        """The typed columns under their names; `_reason`: null for a good row; the entry's `_fields`, of bad rows only:
        what is kept of each row while a batch is written is large enough without them."""
        texts = F.struct(*[F.col(f"`{name}`") for name in self._columns.types]).alias("_raw")
        if self.by_source:
            typed = [F.col(f"`{name}`") for name in self._columns.types]
        else:
            typed = [F.expr(f"try_cast(`{name}` AS {kind})").alias(name) for name, kind in self._columns.types.items()]
        rows = entries.select("_stream", "_id", "_fields", "_at", *self._tries, texts, *typed)
        rows = rows.withColumn("_reason", F.coalesce(*self._reasons(), F.lit(None).cast("string")))
        return rows.withColumn("_fields", F.when(F.col("_reason").isNotNull(), F.col("_fields"))).drop("_raw")

    def _reasons(self) -> list[Column]:
        """Per check, the reason where it fails; the first that fails counts."""
        unfit = [
            F.when(F.expr(f"_raw.`{name}` IS NOT NULL AND `{name}` IS NULL"), F.lit(f"decode: {name} is no {kind}"))
            for name, kind in (() if self.by_source else self._columns.types.items())
        ]
        return unfit + [F.when(F.expr(rule["when"]), F.lit(rule["reason"])) for rule in self._rules]

    def is_tried_again(self) -> Column:
        """Whether a judged row waits for another try."""
        if not self.retry_delay:
            return F.lit(False)
        return F.col("_reason").isNotNull() & (F.col("_attempt") <= len(delays(self.retry_delay)))

    def good(self, judged: DataFrame) -> DataFrame:
        return judged.where("_reason IS NULL").select(*[F.col(f"`{name}`") for name in self._columns.types])

    def letters(self, judged: DataFrame, group: str, consumer: str) -> DataFrame:
        """The bad rows as dead letters, those that are tried again with a stream of their own in column TO."""
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
