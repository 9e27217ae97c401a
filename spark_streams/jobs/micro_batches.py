"""Run a job's streaming query from its first micro-batch to its end: trigger, progress and stop."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams.base.numbers import parse_number
from spark_streams.base.times import duration
from spark_streams.base.untyped import JavaObject
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.running.progress_bar import Bar
from spark_streams.connector.running.run import run_until_drained
from spark_streams.jobs.job import Job

_INTERVAL = re.compile(r"^\s*\d+\s+(millisecond|second|minute|hour)s?\s*$", re.IGNORECASE)

_UNITS = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000}  # of Spark's form, in milliseconds
_FRACTION = 10  # of targetBatchTime that an interval may have


class RunProgress(NamedTuple):
    """Progress of a run.

    query: the query's ID; last: number of the last completed batch; entries: rows of the batches that this run
    completed; rate: rows per second.
    """

    query: str = ""
    last: int = -1
    entries: int = 0
    rate: float = 0.0

    def with_batches(self, recent: Sequence[JavaObject]) -> RunProgress:
        """Count the batches that completed since. recent: Spark's progress of the last batches, the newest last.

        It is asked value by value: as JSON, a batch of 10,000 streams has megabytes, and Spark keeps 100 batches."""
        progress = self
        for batch in [*takewhile(lambda batch: batch.batchId() > self.last, reversed(recent))][::-1]:
            if batch.batchId() > progress.last and batch.durationMs().containsKey("addBatch"):
                progress = progress._replace(last=batch.batchId(), entries=progress.entries + batch.numInputRows())
        return progress


def run_batches(
    job: Job,
    writer: DataStreamWriter,
    end: Callable[[StreamingQuery], None],
    waiting: int | None,
    rows_done: Callable[[RunProgress], int],
    progress: RunProgress,
) -> RunProgress:
    """Run the query to its end, or until the job is to stop. Then `end` ends it.

    waiting: rows to read, None if unknown; rows_done: called repeatedly, returns how many of them are done; progress:
    that of earlier runs, if known. Raises the error that ended the query.
    """
    writer = writer.option("checkpointLocation", job.get("job.checkpoint")).trigger(**trigger_of(job))
    with Bar(job.console, job.name, waiting) as bar:

        def count(query: StreamingQuery) -> None:
            nonlocal progress
            progress = progress._replace(query=query.id)
            progress = progress.with_batches(query._jsq.recentProgress())

        def update_bar(query: StreamingQuery) -> None:
            count(query)
            bar.update(rows_done(progress))

        query, has_ended = run_until_drained(writer.start(), writer.start, job.stop, update_bar)
        if not has_ended:
            end(query)
        count(query)
    return progress._replace(rate=bar.rate)


def check_target_time(job: Job, target: int | None) -> None:
    """Raise ConfigError if the source could not tell the trigger's interval from the time of a batch.

    target: source.targetBatchTime, in milliseconds.
    """
    interval = trigger_of(job).get("processingTime")
    if target is None or interval is None:
        return
    number, unit = interval.split()
    milliseconds = (parse_number(number) or 0) * _UNITS[unit.lower().rstrip("s")]
    if milliseconds * _FRACTION > target:
        raise ConfigError(
            f"job.trigger={interval!r} is more than a tenth of source.targetBatchTime ({target} ms): the source cannot "
            'tell the pause from the time of a batch. Set job.trigger = "1ms", and source.minEntriesPerTrigger with '
            "source.maxTriggerDelay if batches are to wait for entries"
        )


def trigger_of(job: Job) -> Mapping[str, Any]:
    """Return the trigger that `job.trigger` names. Raises ConfigError.

    "available-now" is the default. Otherwise it is an interval: "10s", or Spark's form "10 seconds".
    """
    trigger = str(job.get("job.trigger", "available-now"))
    if trigger == "available-now":
        return {"availableNow": True}
    if _INTERVAL.match(trigger):
        return {"processingTime": trigger}
    try:
        return {"processingTime": f"{duration(trigger)} milliseconds"}
    except ValueError:
        raise ConfigError(
            f'job.trigger must be "available-now" or an interval such as "10s", not {trigger!r}'
        ) from None
