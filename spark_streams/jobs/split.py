"""Split the rows of the job etl: good rows, and bad rows with a reason."""

from __future__ import annotations

import functools
from collections.abc import Mapping

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
from spark_streams.errors import ConfigError, DecodeError
from spark_streams.jobs.schema.columns import Columns
from spark_streams.jobs.schema.payload import WHY, Payload
from spark_streams.jobs.settings.config import Config
from spark_streams.options.values import delays
from spark_streams.running.error_summary import first_line
from spark_streams.source.rows.columns import UNFIT
from spark_streams.spark.sql_name import quoted

_VERDICT = "STRUCT<reason: STRING, error: STRING, message: STRING>"
_LONGEST_VALUE = 100  # characters of a value in a message


def _is_str(value: object) -> bool:
    return isinstance(value, str)


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


class Split:
    """Rules that split rows into good rows and bad rows.

    columns: the fields and their types; rules: {reason, when}; mode: `source.mode`, None if it is not set: then a value
    that does not fit its type makes a dead letter whose reason names the field. If it is set, the source handles such
    values. retry_delay: `source.retryDelay`, "" if it is not set: bad rows are retried.
    payload: the field that holds the columns, encoded; None: each column is a field.
    """

    def __init__(
        self,
        columns: Columns,
        rules: list[Config],
        mode: str | None,
        retry_delay: str = "",
        payload: Payload | None = None,
    ) -> None:
        """Raises ConfigError."""
        for rule in rules:
            if not isinstance(rule, dict) or set(rule) != {"reason", "when"} or not all(map(_is_str, rule.values())):
                raise ConfigError(f"[[rule]] needs exactly reason and when, not {rule!r}")
        self._columns, self._rules, self._payload = columns, rules, payload
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
        columns = self._columns.struct().fields if self._payload is None else [self._payload.source_field]
        return StructType([*columns, *entry_fields])

    def decoded(self, entries: DataFrame) -> DataFrame:
        """Return the entries with the columns, if a field holds them encoded."""
        return entries if self._payload is None else self._payload.decoded(entries, self._columns.struct())

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
        rows = entries.withColumn("_verdict", self._first_verdict)
        texts = {f"_{name}": F.col(f"_verdict.{name}") for name in ("reason", "error", "message")}
        fields = F.when(F.col("_verdict").isNotNull(), F.col("_fields"))
        return rows.withColumns({**texts, "_fields": fields}).drop(UNFIT, WHY, "_verdict")

    @functools.cached_property
    def _first_verdict(self) -> Column:
        """The verdict of a row, null for a good one. Building it takes hundreds of calls of the JVM: once for a run."""
        return F.coalesce(*self._verdicts(), F.lit(None).cast(_VERDICT))

    def _verdicts(self) -> list[Column]:
        """Return, per check, a column with its reason, error and message if it fails. The first one counts."""
        payload = self._payload
        undecoded = [] if payload is None else [
            F.when(F.col(WHY).isNotNull(), F.struct(
                F.concat(F.lit("decode: "), WHY).alias("reason"),
                F.lit(DecodeError.condition).alias("error"),
                payload.message().alias("message"),
            ))
        ]  # fmt: skip
        return [
            *undecoded,
            *([_unfit_verdict(self._columns.types)] if self._judges_values and payload is None else []),
            *[
                F.when(
                    F.expr(rule["when"]),
                    _verdict(F.lit(rule["reason"]), "rule", F.lit(f"the rule holds: {rule['when']}")),
                )
                for rule in self._rules
            ],
        ]

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
        # Each entry is judged once, and a replay of its batch must write the same dead letter.
        judged = judged if self.retry_delay else judged.withColumn("_deliveries", F.lit(1))
        return route_dead_letters(
            judged,
            bad,
            F.col("_reason"),
            stage="etl",
            group=group,
            consumer=consumer,
            error=F.col("_error"),
            message=F.col("_message"),
            at=F.col("_at"),
            retry_delay=self.retry_delay,
        ).letters
