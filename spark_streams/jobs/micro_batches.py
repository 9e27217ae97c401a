"""A streaming query of a job, from its first micro-batch to its end: trigger, progress, and how it is asked to stop."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams.errors import ConfigError
from spark_streams.jobs.job import Job
from spark_streams.monitor.terminal.progress_bar import Bar
from spark_streams.options.values import duration
from spark_streams.running.run_until_drained import to_the_end

_INTERVAL = re.compile(r"^\s*\d+\s+(millisecond|second|minute|hour)s?\s*$", re.IGNORECASE)


class Ran(NamedTuple):
    """query: its id; last: number of the last batch that ended; entries: rows of the batches that this run ended; rate:
    how many per second."""

    query: str = ""
    last: int = -1
    entries: int = 0
    rate: float = 0.0


def run_batches(
    job: Job,
    writer: DataStreamWriter,
    end: Callable[[StreamingQuery], None],
    waiting: int | None,
    look: Callable[[Ran], int],
    ran: Ran,
) -> Ran:
    """Run the query to its end, or until the job is asked to stop: then `end` ends it.

    waiting: rows that there are to read, if that is known; look: called again and again, returns how many of them are
    done; ran: as earlier runs have left the query, if that is known. Raises what ended the query.
    """
    writer = writer.option("checkpointLocation", job.get("job.checkpoint")).trigger(**trigger_of(job))
    with Bar(job.console, job.name, waiting) as bar:

        def count(query: StreamingQuery) -> None:
            nonlocal ran
            ran = ran._replace(query=query.id)
            for progress in query.recentProgress:
                if progress.batchId > ran.last and "addBatch" in progress.durationMs:
                    ran = ran._replace(last=progress.batchId, entries=ran.entries + progress.numInputRows)

        def both(query: StreamingQuery) -> None:
            count(query)
            bar.at(look(ran))

        query, has_ended = to_the_end(writer.start(), writer.start, job.stop, both)
        if not has_ended:
            end(query)
        count(query)
    return ran._replace(rate=bar.rate)


def trigger_of(job: Job) -> Mapping[str, Any]:
    """`job.trigger`: "available-now" (the default; "once" is another word for it), or an interval: "10s", or as Spark
    has it, "10 seconds". Raises ConfigError."""
    wanted = str(job.get("job.trigger", "available-now"))
    if wanted in ("available-now", "once"):
        return {"availableNow": True}
    if _INTERVAL.match(wanted):
        return {"processingTime": wanted}
    try:
        return {"processingTime": f"{duration(wanted)} milliseconds"}
    except ValueError:
        raise ConfigError(
            f'job.trigger must be "available-now", "once" or an interval such as "10s", not {wanted!r}'
        ) from None
