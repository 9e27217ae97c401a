"""[job]: the streaming query of a job from its start to its end, with its checkpoint, trigger, log and metrics."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams import watch
from spark_streams.base.given_text import duration
from spark_streams.base.pattern import matches
from spark_streams.base.untyped import JavaObject
from spark_streams.connector.admin.checkpoint import streams_read
from spark_streams.connector.admin.expected_streams import absent_stream_notes, require_each, require_one
from spark_streams.connector.deadletter.input_streams import Inputs, own_dead_letter_streams
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.lag.survey import view_streams
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.running.ending import end_between_batches
from spark_streams.connector.running.progress_bar import Bar
from spark_streams.connector.running.run import run_until_drained
from spark_streams.connector.source.stream_names import resolve_shards
from spark_streams.connector.watch.listener import Watch
from spark_streams.connector.watch.progress import limit_of
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.scan import bounded, matching_streams
from spark_streams.jobs.job import Facts, Job, JobPart, WrittenPart, access_of
from spark_streams.jobs.output.ownership import read_text
from spark_streams.jobs.parts.source_and_sink import Source

_PROBE = "rstream:doctor"  # a key for tests, which users who read or write streams have a right to
_FRACTION = 10  # of targetBatchTime that an interval may have


class RunProgress(NamedTuple):
    """Progress of a run."""

    query: str = ""  # the query's ID
    last: int = -1  # number of the last completed batch
    entries: int = 0  # rows of the batches that this run completed
    rate: float = 0.0  # rows per second

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
            progress = progress._replace(query=query.id).with_batches(query._jsq.recentProgress())

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
    if target is None or "processingTime" not in trigger_of(job):
        return
    interval = str(job.get("job.trigger"))
    if duration(interval) * _FRACTION > target:
        raise ConfigError(
            f"job.trigger={interval!r} is more than a tenth of source.targetBatchTime ({target} ms): the source cannot "
            'tell the pause from the time of a batch. Set job.trigger = "1ms", and source.minEntriesPerTrigger with '
            "source.maxTriggerDelay if batches are to wait for entries"
        )


def trigger_of(job: Job) -> Mapping[str, Any]:
    """Return the trigger that `job.trigger` names. Raises ConfigError.

    "available-now" is the default. Otherwise it is an interval such as "10s".
    """
    trigger = str(job.get("job.trigger", "available-now"))
    if trigger == "available-now":
        return {"availableNow": True}
    try:
        return {"processingTime": f"{duration(trigger)} milliseconds"}
    except ValueError:
        raise ConfigError(
            f'job.trigger must be "available-now" or an interval such as "10s", not {trigger!r}'
        ) from None


def check_feedback_loop(
    source: SourceOptions, written: Mapping[str, SinkOptions], is_one_server: Callable[[Address, Address], bool]
) -> None:
    """Raise ConfigError if the job writes to a stream that it reads: such a job would never end. Pure.

    written: the options of each sink, by the configuration key that names its stream.
    """
    pattern = source.streams_pattern
    for key, sink_options in written.items():
        stream = sink_options.stream
        if stream is None:
            continue
        if stream in (source.streams or ()):
            naming_option = "source.streams names"
        elif pattern is not None and matches(pattern, stream) and source.without_excluded([stream]):
            naming_option = f"source.streamsPattern {pattern!r} finds"
        else:
            continue
        if is_one_server(source.address, sink_options.address):
            raise ConfigError(
                f"{key} is {stream!r}, which {naming_option}, too: the job would read its own output without end. "
                "Name another stream, or exclude it with source.streamsExcept"
            )


def is_one_server(reading: Address, writing: Address) -> bool:
    """Whether two addresses lead to one server, as `localhost` and `127.0.0.1`: what one writes, the other reads."""
    if reading.url == writing.url:
        return True
    with connect(reading) as reader, connect(writing) as writer:
        token = secrets.token_hex(8).encode()
        writer.execute("SET", _PROBE, token, "PX", 10_000)
        seen = reader.execute("GET", _PROBE)
        writer.execute("DEL", _PROBE)
    return bool(seen == token)


class Query(JobPart):
    """Streaming query of a job. It is made before Spark is started.

    Args:
        source: What the query reads.
        written: The parts to which it writes.

    Raises:
        ConfigError: `[job]` cannot be used, or the job would read what it writes.
        RStreamError: The source's server does not answer, a key is no stream, or a stream must exist and does not.
    """

    KEYS = {
        "job": {
            "checkpoint": str,
            "name": str,
            "trigger": str,
            "stop_within": str,
            "log": str,
            "metrics_port": int,
            "metrics_host": str,
            "unhealthy_after": str,
            "metrics_file": str,
            "lineage": str,
        },
    }
    REQUIRED = ("job.checkpoint",)

    def __init__(self, job: Job, source: Source, *written: WrittenPart) -> None:
        self._job, self._written = job, written
        self._source = options = source.options
        self._checkpoint = Path(job.get("job.checkpoint").removeprefix("file:"))
        self._watching: Watch | None = None
        self._progress, self._is_cut = RunProgress(), False
        sinks = {key: sink for part in written for key, sink in part.streams().items()}
        check_feedback_loop(options, sinks, is_one_server)
        check_target_time(job, options.target_batch_time)
        self._patience = job.duration("job.stop_within", "30s") / 1000
        try:
            limit_of(job.get("job.unhealthy_after", "10m"))
        except ValueError as error:
            raise ConfigError(f"job.unhealthy_after {error}") from None
        for key in ("job.metrics_host", "job.unhealthy_after"):
            if job.get(key) is not None and job.get("job.metrics_port") is None:
                raise ConfigError(f"{key} has no effect without job.metrics_port: set both of them, or none")
        if not 0 <= job.get("job.metrics_port", 0) < 65536:
            raise ConfigError(f"job.metrics_port must be a port, not {job.get('job.metrics_port')}")
        if options.streams is None and options.streams_pattern is None:
            raise ConfigError("source.streams is missing (or source.streamsPattern): set one of them to name streams")
        with connect(options.address) as server:
            self.streams: list[str] = list(resolve_shards(server, options.streams or ()) or _inputs(server, options))
            views = view_streams(server, self.streams)
            views_by_stream = {view.stream: view for view in views}
            if source.must_exist:
                require_each(server, options, self.streams, views_by_stream)
            elif source.must_exist is None and options.archive_path is None:
                read = streams_read(self._checkpoint)
                found = {*views_by_stream, *(view.stream for view in view_streams(server, read))}
                require_one(server, read, found, str(self._checkpoint))
            self._expected = absent_stream_notes(server, options, self.streams, views_by_stream) if job.check else []
        self.waiting: int | None = 0
        for view in views:
            group = next((candidate for candidate in view.groups if candidate.group == options.group), None)
            if self.waiting is None or (group is not None and group.lag is None):
                self.waiting = None
            else:
                self.waiting += view.length if group is None else group.pending + (group.lag or 0)
        # What the job itself adds to a stream cannot be told from what the source moves there.
        is_shared = options.dead_letter_stream in [sink.stream for sink in sinks.values()]
        self._moved_before = None if is_shared else _count_added(options)

    def plan(self) -> Facts:
        source, spark, checkpoint = self._source, self._job.spark, str(self._job.get("job.checkpoint"))
        continues = spark is not None and read_text(spark, checkpoint, "metadata") is not None
        return {
            "read": f"{', '.join(source.streams or self.streams) or source.streams_pattern} at {source.address}",
            "as": f"group {source.group}, consumer {source.consumer}",
            "waiting": "unknown" if self.waiting is None else f"{self.waiting:,} entries",
            **({"note": "; ".join(self._expected)} if self._expected else {}),
            "checkpoint": f"{checkpoint}{' (continues)' if continues else ''}",
            "trigger": self._job.get("job.trigger", "available-now"),
        }

    def count_dead_letters(self, counts: Mapping[str, int]) -> None:
        """Add the dead letters of a micro-batch, by stream, to the log and the metrics."""
        if self._watching is not None and any(counts.values()):
            self._watching.count_dead_letters(self._source.group, counts)

    def run(
        self,
        rows: DataFrame,
        write: Callable[[DataFrame, int], None],
        output_mode: str = "append",
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        """Run the query to its end, or until the job is to stop. Then the batch in flight is finished first.

        Args:
            rows: A streaming DataFrame of the source.
            write: Writes a micro-batch: its rows, and its number.
            output_mode: Spark's output mode.
            on_poll: Is called repeatedly while the query runs.

        Raises:
            RStreamError: The error that ended the query.
        """
        job = self._job

        def entries_done(progress: RunProgress) -> int:
            on_poll()
            return progress.entries

        def end(query: StreamingQuery) -> None:
            self._is_cut = not end_between_batches(query, self._patience, job.stop)

        for part in self._written:
            part.open(self.streams)
        # It also notes the error that ends the query, for the dead letter of the entry that caused it.
        self._watching = watch(
            rows.sparkSession,
            options=access_of(job.options("source")),
            log=job.get("job.log"),
            metrics_port=job.get("job.metrics_port"),
            metrics_host=job.get("job.metrics_host", "127.0.0.1"),
            unhealthy_after=job.get("job.unhealthy_after", "10m"),
            metrics_file=job.get("job.metrics_file"),
            lineage=job.get("job.lineage"),
        )
        with contextlib.closing(self._watching):
            datasets = (dataset for part in self._written for dataset in part.datasets())
            self._watching.declare_outputs(dataset for dataset in datasets if dataset is not None)
            writer = rows.writeStream.foreachBatch(write).outputMode(output_mode)
            writer = writer.queryName(job.get("job.name") or self._source.group)
            self._progress = run_batches(job, writer, end, self.waiting or None, entries_done, RunProgress())

    def summary(self) -> Facts:
        # Entries that the source moved before they became rows. (Other clients may write to that stream, too.)
        added, before = _count_added(self._source), self._moved_before
        return {
            "entries": self._progress.entries,
            "entries_per_second": round(self._progress.rate),
            **({} if added is None or before is None else {"moved_by_source": added - before}),
            **({"cut": True} if self._is_cut else {}),
        }


def _inputs(server: Server, source: SourceOptions) -> list[str]:
    """Return the streams that match the pattern and that the query would read now."""
    own_streams = own_dead_letter_streams(source.dead_letter_stream)
    matching = matching_streams(server, source.pattern, own_streams)
    return Inputs().filter_inputs(server, bounded(source.without_excluded(matching)).streams)


def _count_added(source: SourceOptions) -> int | None:
    """Return how many entries were ever added to the dead-letter stream of the source, None without one."""
    if source.dead_letter_stream is None:
        return None
    with connect(source.address) as server:
        views = view_streams(server, [source.dead_letter_stream])
    return 0 if not views else views[0].length if views[0].added is None else views[0].added
