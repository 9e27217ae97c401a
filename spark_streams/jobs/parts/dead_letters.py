"""[dead_letters]: the stream to which a job writes its bad rows, with the reason of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from pyspark.sql import functions as F

from spark_streams.connector.deadletter.routing import TO, route_dead_letters
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.spark.task_context import time_of_batch
from spark_streams.connector.watch.lineage.datasets import Dataset, sink_dataset
from spark_streams.jobs.job import Job
from spark_streams.jobs.output.stream import written_once
from spark_streams.jobs.part import Facts, Written
from spark_streams.jobs.parts.rules import Judged
from spark_streams.jobs.parts.source import Source
from spark_streams.jobs.settings.config import FREE


class DeadLetters(Written):
    """Stream of dead letters, with the options of `[dead_letters]`.

    Args:
        job: The job, with its configuration.
        source: The source, whose `retryDelay` lets bad rows wait for a retry.

    Raises:
        ConfigError: An option contradicts another one.
        OptionError: An option cannot be used.
    """

    KEYS = {"dead_letters": FREE}
    REQUIRED = ("dead_letters.stream",)

    def __init__(self, job: Job, source: Source) -> None:
        self.options = SinkOptions.parse(job.options("dead_letters"))
        self._source = source
        _check(self.options, source)
        retried = {"streamColumn": TO} if source.retry_delay else {}
        self._sink = {**written_once(self.options, "letters"), **job.options("dead_letters"), **retried}
        self._reasons: Counter[str] = Counter()
        self._retried = 0

    def streams(self) -> Mapping[str, SinkOptions]:
        return {"dead_letters.stream": self.options}

    def datasets(self) -> Iterable[Dataset | None]:
        return [sink_dataset(self.options)]

    def plan(self) -> Facts:
        retry_delay = self._source.retry_delay
        return {
            **({"tried_again": f"after {retry_delay}"} if retry_delay else {}),
            "dead_letters": f"{self.options.stream} at {self.options.address}",
        }

    def write(self, judged: Judged) -> Mapping[str, int]:
        """Write the bad rows of a micro-batch. Return the number of dead letters by the stream of their entries."""
        counts = judged.bad_counts
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
            letters.write.format("rstream").mode("append").options(**self._sink).save()
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


def _check(options: SinkOptions, source: Source) -> None:
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
